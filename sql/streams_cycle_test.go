package sql_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

type (
	cycleRequest struct {
		Idx      *int       `json:"idx,omitempty"`
		Index    *int       `json:"index,omitempty"`
		Tenant   string     `json:"tenant,omitempty"`
		Query    string     `json:"query_id,omitempty"`
		Source   string     `json:"partition_id,omitempty"`
		Group    string     `json:"consumer_group,omitempty"`
		Worker   string     `json:"worker,omitempty"`
		Release  *bool      `json:"release_lease,omitempty"`
		StateOps []stateOp  `json:"state_ops,omitempty"`
		Sinks    []wirePush `json:"sink_segments,omitempty"`
		Ack      *cycleAck  `json:"ack"`
	}
	stateOp struct {
		Type  string          `json:"type,omitempty"`
		Key   *string         `json:"key,omitempty"`
		Value json.RawMessage `json:"value,omitempty"`
	}
	cycleAck struct {
		OK    *bool `json:"ok,omitempty"`
		Count *int  `json:"count,omitempty"`
	}
	cycleResult struct {
		Success    bool         `json:"success"`
		Error      string       `json:"error"`
		Query      string       `json:"query_id"`
		Source     string       `json:"partition_id"`
		Queue      string       `json:"queueName"`
		Applied    int          `json:"state_ops_applied"`
		Pushed     []sinkResult `json:"push_results"`
		Acked      *ackResult   `json:"ack_result"`
		Duplicates []sinkResult `json:"duplicates"`
	}
	sinkResult struct {
		Queue      string `json:"queue"`
		Partition  string `json:"partition"`
		Status     string `json:"status"`
		BaseOffset *int64 `json:"baseOffset"`
		Dups       []dup  `json:"dups"`
	}
	dup struct {
		I   int   `json:"i"`
		Off int64 `json:"off"`
	}
	ackResult struct {
		Success  bool  `json:"success"`
		Count    int   `json:"count"`
		Released bool  `json:"lease_released"`
		DLQ      *bool `json:"dlq"`
	}
)

func sinkOf(queue, partition string, ids ...string) wirePush {
	push := pushOf(queue, partition, ids...)
	push.HashesHex, push.HashesB64 = "", base64.StdEncoding.EncodeToString(joinHashes(ids))
	return push
}

// cycle runs one element.
func cycle(t tester, q querier, request cycleRequest) cycleResult {
	t.Helper()
	results, err := cycles(q, request)
	require.NoError(t, err)
	require.Len(t, results, 1)
	return results[0].Result
}

type cycleElement struct {
	Idx    int         `json:"idx"`
	Result cycleResult `json:"result"`
}

func cycles(q querier, requests ...cycleRequest) ([]cycleElement, error) {
	text, err := json.Marshal(requests)
	if err != nil {
		return nil, err
	}
	return callJSON[[]cycleElement](q, `SELECT queen.log_streams_cycle_v1($1)`, text)
}

// A stream is a registered query over one leased source partition: decisionSegments with (1, 8] leased by "w".
type stream struct {
	ackLog
	query, source uuid.UUID
}

func newStream(t *testing.T) stream {
	t.Helper()
	s := stream{ackLog: newAckLog(t)}
	s.source = s.partition(t, s.queue(t, defaultTenant, "source"), decisionSegments()...)
	s.query = s.register(t, defaultTenant)
	s.lease(t)
	return s
}

func (s stream) register(t tester, tenant uuid.UUID) (id uuid.UUID) {
	t.Helper()
	require.NoError(t, s.QueryRow(context.Background(), `INSERT INTO queen_streams.queries (name, source_queue, config_hash, tenant_id)
		VALUES ('sums', 'source', 'h1', $1) RETURNING id`, tenant).Scan(&id))
	return id
}

func (s stream) lease(t tester) {
	t.Helper()
	s.setCursor(t, s.source, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live", Retries: 2, AttemptOffset: new(int64(2)), Attempts: 3})
}

// request is a cycle of the stream's group with an ack of all.
func (s stream) request() cycleRequest {
	return cycleRequest{Query: s.query.String(), Source: s.source.String(), Group: "g", Worker: "w", Ack: &cycleAck{Count: new(7)}}
}

func (s stream) values(t tester) map[string]string {
	t.Helper()
	rows, err := s.Query(context.Background(), `SELECT key, value::text FROM queen_streams.state WHERE query_id = $1 AND partition_id = $2`, s.query, s.source)
	require.NoError(t, err)
	defer rows.Close()
	values := map[string]string{}
	for rows.Next() {
		var key, value string
		require.NoError(t, rows.Scan(&key, &value))
		values[key] = value
	}
	require.NoError(t, rows.Err())
	return values
}

func TestStreamsCycleCommitsStateSinksAndAckTogether(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	request := s.request()
	request.StateOps = []stateOp{{"upsert", new("a"), json.RawMessage(`{"n": 1}`)}, {"upsert", new("b"), nil}}
	request.Sinks = []wirePush{sinkOf("sink", "p2", "x", "y"), sinkOf("sink", "p1", "z")}

	got := cycle(t, s, request)

	want := cycleResult{
		Success: true, Query: s.query.String(), Source: s.source.String(), Queue: "source", Applied: 2,
		Pushed: []sinkResult{{"sink", "p2", "queued", new(int64(0)), nil}, {"sink", "p1", "queued", new(int64(0)), nil}},
		Acked:  &ackResult{true, 7, true, new(false)},
	}
	require.Empty(t, cmp.Diff(want, got))
	require.Equal(t, map[string]string{"a": `{"n": 1}`, "b": `{}`}, s.values(t))
	require.Empty(t, cmp.Diff(cursor{Committed: 8, Consumed: 7}, s.cursor(t, s.source, "g")))
}

func TestStreamsStateOps(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	apply := func(ops ...stateOp) cycleResult {
		request := s.request()
		request.StateOps, request.Ack = ops, nil
		return cycle(t, s, request)
	}

	got := apply(stateOp{"upsert", new("a"), json.RawMessage(`1`)}, stateOp{"upsert", new("gone"), json.RawMessage(`1`)}, stateOp{"upsert", new("a"), json.RawMessage(`null`)})
	require.True(t, got.Success, got.Error)
	require.Equal(t, 3, got.Applied)
	require.Nil(t, got.Acked)
	var written string
	require.NoError(t, s.QueryRow(context.Background(), `SELECT updated_at::text FROM queen_streams.state WHERE key = 'a'`).Scan(&written))

	got = apply(stateOp{"delete", new("gone"), nil}, stateOp{"upsert", new("gone"), json.RawMessage(`2`)}, stateOp{"upsert", new("x"), nil},
		stateOp{"delete", new("x"), nil}, stateOp{"delete", new("never"), nil}, stateOp{"upsert", new("a"), json.RawMessage(`{"k":[1]}`)})
	require.True(t, got.Success, got.Error)
	require.Equal(t, map[string]string{"a": `{"k": [1]}`, "gone": "2"}, s.values(t))
	require.Equal(t, 1, s.count(t, `SELECT count(*) FROM queen_streams.state WHERE key = 'a' AND updated_at > $1::timestamptz`, written))

	for _, tc := range []struct {
		name string
		op   stateOp
		want string
	}{
		{"UnknownType", stateOp{"merge", new("a"), nil}, "Unknown state_op type: merge"},
		{"NoType", stateOp{"", new("a"), nil}, "Unknown state_op type: null"},
		{"NoKey", stateOp{"upsert", nil, nil}, "state_op key is required"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := s.state(t)
			got := apply(stateOp{"upsert", new("new"), nil}, tc.op)
			require.Equal(t, cycleResult{Error: tc.want, Query: s.query.String(), Source: s.source.String(), Queue: "source", Pushed: []sinkResult{}}, got)
			require.Empty(t, cmp.Diff(before, s.state(t)))
		})
	}
}

func TestStreamsSinks(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	_, err := s.Exec(context.Background(), `INSERT INTO queen.queues (name, max_queue_size) VALUES ('bounded', 4)`)
	require.NoError(t, err)
	push := func(sinks ...wirePush) cycleResult {
		request := s.request()
		request.Sinks, request.Ack = sinks, nil
		return cycle(t, s, request)
	}
	require.True(t, push(sinkOf("sink", "p", "s0", "s1"), sinkOf("bounded", "a", "b0", "b1")).Success)

	t.Run("CompleteDuplicateIsRecorded", func(t *testing.T) {
		got := push(sinkOf("sink", "p", "s1", "s0"), sinkOf("sink", "q", "s1"))
		require.Empty(t, cmp.Diff([]sinkResult{
			{"sink", "p", "duplicate", nil, []dup{{0, 1}, {1, 0}}}, {"sink", "q", "queued", new(int64(0)), nil},
		}, got.Pushed))
	})
	t.Run("PartialDuplicatesFailWithTheirIndexes", func(t *testing.T) {
		before := s.state(t)
		got := push(sinkOf("sink", "p", "n0", "s1", "n1", "s0"), sinkOf("sink", "q", "s1"), sinkOf("bounded", "a", "b2", "b1"))
		require.False(t, got.Success)
		require.Equal(t, `partial duplicate in sink queue "sink" partition "p": indexes 1,3 of 4 messages are stored already`, got.Error)
		require.Empty(t, got.Pushed)
		require.Empty(t, cmp.Diff([]sinkResult{{Queue: "sink", Partition: "p", Dups: []dup{{1, 1}, {3, 0}}}, {Queue: "bounded", Partition: "a", Dups: []dup{{1, 1}}}}, got.Duplicates))
		require.Empty(t, cmp.Diff(before, s.state(t)))
	})
	t.Run("ACompleteDuplicateDoesNotHoldBackItsBoundedQueue", func(t *testing.T) {
		got := push(sinkOf("bounded", "c", "c0"), sinkOf("bounded", "a", "b0"), sinkOf("sink", "r", "x"), sinkOf("bounded", "d", "d0"))
		require.True(t, got.Success, got.Error)
		statuses := []string{}
		for _, p := range got.Pushed {
			statuses = append(statuses, p.Queue+"/"+p.Partition+" "+p.Status)
		}
		require.Equal(t, []string{"bounded/c queued", "bounded/a duplicate", "sink/r queued", "bounded/d queued"}, statuses)
	})
	t.Run("AFullQueueFailsTheCycle", func(t *testing.T) {
		before := s.state(t)
		got := push(sinkOf("sink", "z", "z"), sinkOf("bounded", "a", "b9"))
		require.Equal(t, `QUEUE_FULL queue "bounded" is full; cycle rolled back`, got.Error)
		require.Empty(t, cmp.Diff(before, s.state(t)))
	})
	t.Run("AFullQueueStillRecordsDuplicates", func(t *testing.T) {
		require.Equal(t, "duplicate", push(sinkOf("bounded", "a", "b0")).Pushed[0].Status)
	})
	t.Run("PlainMessagesForAnEncryptedQueueFail", func(t *testing.T) {
		_, err := s.Exec(context.Background(), `INSERT INTO queen.queues (name, encryption_enabled) VALUES ('secret', TRUE)`)
		require.NoError(t, err)
		sink := sinkOf("secret", "p", "x")
		sink.Plain = true
		require.Equal(t, `sink queue "secret" partition "p" refused the push (config)`, push(sink).Error)
	})
	t.Run("AnEmptyNameFails", func(t *testing.T) {
		got := push(sinkOf("", "p", "x"))
		require.False(t, got.Success)
		require.NotEmpty(t, got.Error)
	})
	t.Run("SinksBelongToTheTenant", func(t *testing.T) {
		tenant := uuid.New()
		other := s
		other.query = s.register(t, tenant)
		other.source = s.partition(t, s.queue(t, tenant, "source"), decisionSegments()...)
		request := other.request()
		request.Tenant, request.Ack, request.Sinks = tenant.String(), nil, []wirePush{sinkOf("sink", "p", "s0")}
		got := cycle(t, s, request)
		require.Equal(t, "queued", got.Pushed[0].Status)
		require.Equal(t, 1, s.count(t, `SELECT count(*) FROM queen.queues WHERE name = 'sink' AND tenant_id = $1`, tenant))
	})
}

func TestStreamsAck(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	leased := s.cursor(t, s.source, "g")
	free := cursor{Committed: 1, Retries: 2, AttemptOffset: new(int64(2)), Attempts: 3}
	partial := func(committed, consumed int64) cursor {
		c := leased
		c.Committed, c.Consumed, c.AttemptOffset = committed, consumed, new(committed+1)
		return c
	}
	full := func(consumed int64) cursor { return cursor{Committed: 8, Consumed: consumed} }

	for _, tc := range []struct {
		name    string
		release bool
		ack     cycleAck
		want    ackResult
		after   cursor
	}{
		{"Whole", true, cycleAck{Count: new(7)}, ackResult{true, 7, true, new(false)}, full(7)},
		{"WholeCountDefaultsToZero", true, cycleAck{}, ackResult{true, 0, true, new(false)}, full(0)},
		{"WholeNegativeCountIsZero", true, cycleAck{Count: new(-3)}, ackResult{true, 0, true, new(false)}, full(0)},
		{"NotOkReleases", true, cycleAck{OK: new(false), Count: new(7)}, ackResult{true, 0, true, new(false)}, free},
		{"NotOkReleasesAGateToo", false, cycleAck{OK: new(false), Count: new(3)}, ackResult{true, 0, true, new(false)}, free},
		{"GatePart", false, cycleAck{Count: new(3)}, ackResult{true, 3, false, new(false)}, partial(4, 3)},
		{"GateNothing", false, cycleAck{Count: new(0)}, ackResult{true, 0, false, new(false)}, leased},
		{"GateAll", false, cycleAck{Count: new(7)}, ackResult{true, 7, true, new(false)}, full(7)},
		{"GateStopsAtTheBatchEnd", false, cycleAck{Count: new(50)}, ackResult{true, 7, true, new(false)}, full(7)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.lease(t)
			request := s.request()
			request.Release, request.Ack = new(tc.release), &tc.ack
			got := cycle(t, s, request)
			require.True(t, got.Success, got.Error)
			require.Empty(t, cmp.Diff(&tc.want, got.Acked))
			require.Empty(t, cmp.Diff(tc.after, s.cursor(t, s.source, "g")))
		})
	}
	t.Run("EmptyGroupIsQueueMode", func(t *testing.T) {
		s.setCursor(t, s.source, "__QUEUE_MODE__", leased)
		request := s.request()
		request.Group = ""
		require.True(t, cycle(t, s, request).Success)
		require.Equal(t, int64(8), s.cursor(t, s.source, "__QUEUE_MODE__").Committed)
	})
}

// A gate counts stored messages: what retention took is passed over and not counted.
func TestStreamsGateSkipsGaps(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	for _, tc := range []struct {
		name      string
		committed int64
		count     int
		want      ackResult
		after     int64
	}{
		{"InsideTheHead", 4, 1, ackResult{true, 1, false, new(false)}, 10},
		{"HeadIsPartial", 10, 1, ackResult{true, 1, false, new(false)}, 11},
		{"UpToTheGap", 4, 2, ackResult{true, 2, false, new(false)}, 11},
		{"OverTheGap", 4, 3, ackResult{true, 3, false, new(false)}, 30},
		{"FromInsideTheGap", 20, 1, ackResult{true, 1, false, new(false)}, 30},
		{"IntoTheLastSegment", 10, 4, ackResult{true, 4, false, new(false)}, 40},
		{"ToTheEnd", 4, 7, ackResult{true, 7, true, new(false)}, 42},
		{"BeyondTheEnd", 29, 9, ackResult{true, 5, true, new(false)}, 42},
	} {
		t.Run(tc.name, func(t *testing.T) {
			queue := s.queue(t, defaultTenant, t.Name())
			s := s
			s.source = s.partition(t, queue, stretch{10, []string{"a", "b"}}, stretch{30, []string{"c", "d"}}, stretch{40, []string{"e", "f", "g", "h"}})
			s.setCursor(t, s.source, "g", cursor{Committed: tc.committed, BatchEnd: new(int64(42)), Worker: "w", Lease: "live"})
			request := s.request()
			request.Release, request.Ack = new(false), &cycleAck{Count: &tc.count}
			got := cycle(t, s, request)
			require.True(t, got.Success, got.Error)
			require.Empty(t, cmp.Diff(&tc.want, got.Acked))
			require.Equal(t, tc.after, s.cursor(t, s.source, "g").Committed)
		})
	}
	t.Run("NothingLeftOfTheBatchEndsIt", func(t *testing.T) {
		s := s
		s.source = s.partition(t, s.queue(t, defaultTenant, t.Name()), stretch{100, []string{"z"}})
		s.setCursor(t, s.source, "g", cursor{Committed: 4, BatchEnd: new(int64(42)), Worker: "w", Lease: "live"})
		request := s.request()
		request.Release, request.Ack = new(false), &cycleAck{Count: new(3)}
		require.Equal(t, &ackResult{true, 0, true, new(false)}, cycle(t, s, request).Acked)
		require.Equal(t, int64(42), s.cursor(t, s.source, "g").Committed)
	})
}

// Whatever fails, in whatever part: nothing of the element stays, and the failed answer claims nothing.
func TestStreamsCycleIsAllOrNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	stranger := uuid.New()
	foreignQuery := s.register(t, stranger)
	foreignSource := s.partition(t, s.queue(t, stranger, "foreign"), decisionSegments()...)
	s.setCursor(t, s.source, "expired", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "expired"})
	s.setCursor(t, s.source, "no batch", cursor{Committed: 1, Worker: "w", Lease: "live"})
	s.setCursor(t, s.source, "free", cursor{Committed: 1})

	for _, tc := range []struct {
		name        string
		change      func(*cycleRequest)
		want, queue string
	}{
		{"LostLease", func(r *cycleRequest) { r.Worker = "w2" }, "invalid or expired lease", "source"},
		{"NoWorker", func(r *cycleRequest) { r.Worker = "" }, "invalid or expired lease", "source"},
		{"NoWorkerOnAFreeRow", func(r *cycleRequest) { r.Worker, r.Group = "", "free" }, "invalid or expired lease", "source"},
		{"ExpiredLease", func(r *cycleRequest) { r.Group = "expired" }, "invalid or expired lease", "source"},
		{"UnknownGroup", func(r *cycleRequest) { r.Group = "nobody" }, "invalid or expired lease", "source"},
		{"LostLeaseOfANack", func(r *cycleRequest) { r.Worker, r.Ack.OK = "w2", new(false) }, "invalid or expired lease", "source"},
		{"NoLeasedBatch", func(r *cycleRequest) { r.Group = "no batch" }, "no leased batch", "source"},
		{"NoLeasedBatchForAGate", func(r *cycleRequest) { r.Group, r.Release = "no batch", new(false) }, "no leased batch", "source"},
		{"NoQuery", func(r *cycleRequest) { r.Query = "" }, "query_id is required", ""},
		{"NoPartition", func(r *cycleRequest) { r.Source = "" }, "partition_id is required", ""},
		{"ForeignQuery", func(r *cycleRequest) { r.Query = foreignQuery.String() }, "query not owned by tenant", ""},
		{"UnknownQuery", func(r *cycleRequest) { r.Query = uuid.NewString() }, "query not owned by tenant", ""},
		{"ForeignPartition", func(r *cycleRequest) { r.Source = foreignSource.String() }, "partition not owned by tenant", ""},
		{"UnknownPartition", func(r *cycleRequest) { r.Source = uuid.NewString() }, "partition not owned by tenant", ""},
		{"MalformedQuery", func(r *cycleRequest) { r.Query = "none" }, `invalid input syntax for type uuid: "none"`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			request := s.request()
			request.StateOps = []stateOp{{"upsert", new("a"), json.RawMessage(`1`)}}
			request.Sinks = []wirePush{sinkOf("brand-new", "p", "x")}
			tc.change(&request)
			before := s.state(t)
			got := cycle(t, s, request)
			require.Empty(t, cmp.Diff(cycleResult{Error: tc.want, Query: request.Query, Source: request.Source, Queue: tc.queue, Pushed: []sinkResult{}}, got))
			require.Empty(t, cmp.Diff(before, s.state(t)))
		})
	}
	t.Run("AFailedElementDoesNotTouchTheOthers", func(t *testing.T) {
		lost := s.request()
		lost.Index, lost.Worker, lost.StateOps = new(7), "w2", []stateOp{{"upsert", new("lost"), nil}}
		kept := s.request()
		kept.Idx, kept.StateOps = new(9), []stateOp{{"upsert", new("kept"), nil}}
		unnumbered := s.request()
		unnumbered.Ack, unnumbered.StateOps = nil, []stateOp{{"upsert", new("third"), nil}}
		got, err := cycles(s, lost, kept, unnumbered)
		require.NoError(t, err)
		require.Equal(t, []int{7, 9, 2}, []int{got[0].Idx, got[1].Idx, got[2].Idx})
		require.Equal(t, []bool{false, true, true}, []bool{got[0].Result.Success, got[1].Result.Success, got[2].Result.Success})
		require.Equal(t, map[string]string{"kept": "{}", "third": "{}"}, s.values(t))
	})
	t.Run("NoElements", func(t *testing.T) {
		for _, request := range []any{nil, []byte(`[]`), []byte(`null`)} {
			got, err := callJSON[[]cycleElement](s, `SELECT queen.log_streams_cycle_v1($1)`, request)
			require.NoError(t, err)
			require.Equal(t, []cycleElement{}, got)
		}
	})
}

func TestStreamsCyclesOfOneStateShardTakeTurns(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	const write = `SELECT queen.log_streams_cycle_v1(jsonb_build_array(jsonb_build_object('query_id', $1::text, 'partition_id', $2::text,
		'state_ops', jsonb_build_array(jsonb_build_object('type', 'upsert', 'key', $3::text)))))::text`
	s1, s2, s3 := s.session(t), s.session(t), s.session(t)
	s1.do(t, "BEGIN")
	s1.do(t, write, s.query.String(), s.source.String(), "a")
	waiting := s2.start(t, write, s.query.String(), s.source.String(), "b")
	waiting.requireBlocked(t, s1)
	other := s.partition(t, s.queue(t, defaultTenant, "other"), decisionSegments()...)
	s3.do(t, `SET statement_timeout = '10s'`)
	s3.do(t, write, s.query.String(), other.String(), "c")
	s1.do(t, "COMMIT")
	require.Contains(t, waiting.wait(t), `"success": true`)
	require.Len(t, s.values(t), 2)
}

// A lock timeout is the caller's to repeat, not a verdict about the cycle.
func TestStreamsCycleDoesNotHideALockTimeout(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s1, s2 := s.session(t), s.session(t)
	s1.do(t, "BEGIN")
	s1.do(t, `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'g' FOR UPDATE`, s.source)
	s2.do(t, `SET lock_timeout = '50ms'`)
	before := s.state(t)
	request := s.request()
	request.StateOps = []stateOp{{"upsert", new("a"), nil}}
	_, err := cycles(s2, request)
	requireSQLState(t, err, "55P03", "lock timeout")
	require.Empty(t, cmp.Diff(before, s.state(t)))
}
