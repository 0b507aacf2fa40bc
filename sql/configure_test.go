package sql_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// optionDefaults are the values that a queue created by configure gets.
func optionDefaults() map[string]any {
	return map[string]any{
		"priority": 0.0, "leaseTime": 300.0, "retryLimit": 3.0, "retryDelay": 1000.0, "maxSize": 0.0, "ttl": 3600.0,
		"deadLetterQueue": true, "dlqAfterMaxRetries": true, "delayedProcessing": 0.0, "windowBuffer": 0.0,
		"retentionSeconds": 0.0, "completedRetentionSeconds": 0.0, "retentionEnabled": false, "encryptionEnabled": false,
		"maxWaitTimeSeconds": 0.0, "minPopWaitTime": 0.0, "dedupWindowSeconds": 3600.0,
		"dlqRetentionSeconds": 0.0, "redeliveryDelayMs": 0.0, "maxDeliveries": 0.0,
	}
}

// with returns the map with some keys set.
func with(m map[string]any, pairs ...any) map[string]any {
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// A configuration is any answer of configure_queue_v1.
type configuration struct {
	Configured  bool           `json:"configured"`
	QueueID     *uuid.UUID     `json:"queueId"`
	PartitionID *uuid.UUID     `json:"partitionId"`
	Queue       string         `json:"queue"`
	Namespace   string         `json:"namespace"`
	Task        string         `json:"task"`
	Storage     string         `json:"storage"`
	Options     map[string]any `json:"options"`
	Ignored     []string       `json:"ignored"`
	NotApplied  []string       `json:"notApplied"`
	Error       string         `json:"error"`
	Code        string         `json:"code"`
}

func (l pushLog) configure(t *testing.T, queue, options string) configuration {
	t.Helper()
	c, err := callJSON[configuration](l, `SELECT queen.configure_queue_v1($1, $2)`, queue, options)
	require.NoError(t, err)
	return c
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)

	t.Run("CreateUsesDefaultsAndEchoesEverything", func(t *testing.T) {
		t.Parallel()
		got := log.configure(t, "new.queue", `{}`)
		require.NotNil(t, got.QueueID)
		require.Empty(t, cmp.Diff(configuration{
			Configured: true, QueueID: got.QueueID, Queue: "new.queue", Storage: "segments",
			Options: optionDefaults(), Ignored: []string{}, NotApplied: []string{},
		}, got))
		require.Equal(t, *got.QueueID, scan[uuid.UUID](t, log, `SELECT id FROM queen.queues WHERE name = 'new.queue' AND lease_time = 300`))
		named := log.configure(t, "", `{"namespace":"n","task":"t"}`)
		require.Equal(t, []string{"", "n", "t"}, []string{named.Queue, named.Namespace, named.Task})
	})

	t.Run("EveryOptionIsStoredAndComesBack", func(t *testing.T) {
		t.Parallel()
		const all = `{"priority":-7,"leaseTime":1,"retryLimit":0,"retryDelay":5,"maxSize":10000,"ttl":60,"deadLetterQueue":false,
			"dlqAfterMaxRetries":false,"delayedProcessing":2,"windowBuffer":3,"retentionSeconds":4,"completedRetentionSeconds":5,
			"retentionEnabled":true,"encryptionEnabled":true,"maxWaitTimeSeconds":6,"minPopWaitTime":7,"dedupWindowSeconds":8,
			"dlqRetentionSeconds":9,"redeliveryDelayMs":10,"maxDeliveries":11}`
		want := map[string]any{
			"priority": -7.0, "leaseTime": 1.0, "retryLimit": 0.0, "retryDelay": 5.0, "maxSize": 10000.0, "ttl": 60.0,
			"deadLetterQueue": false, "dlqAfterMaxRetries": false, "delayedProcessing": 2.0, "windowBuffer": 3.0,
			"retentionSeconds": 4.0, "completedRetentionSeconds": 5.0, "retentionEnabled": true, "encryptionEnabled": true,
			"maxWaitTimeSeconds": 6.0, "minPopWaitTime": 7.0, "dedupWindowSeconds": 8.0,
			"dlqRetentionSeconds": 9.0, "redeliveryDelayMs": 10.0, "maxDeliveries": 11.0,
		}
		got := log.configure(t, "all", all)
		require.Empty(t, cmp.Diff(want, got.Options))
		require.Equal(t, []string{"priority", "retryDelay", "ttl"}, got.NotApplied)
		require.Empty(t, cmp.Diff(want, log.configure(t, "all", `{}`).Options))
		require.Equal(t, "-7 1 0 5 10000 60 false false 2 3 4 5 true true 6 7 8 9 10 11", scan[string](t, log, `SELECT concat_ws(' ', priority, lease_time,
			retry_limit, retry_delay, max_queue_size, ttl, dead_letter_queue::text, dlq_after_max_retries::text, delayed_processing, window_buffer,
			retention_seconds, completed_retention_seconds, retention_enabled::text, encryption_enabled::text, max_wait_time_seconds,
			min_pop_wait_time, dedup_window_seconds, dlq_retention_seconds, redelivery_delay_ms, max_deliveries)
			FROM queen.queues WHERE name = 'all'`))
	})

	t.Run("MergeKeepsWhatIsAbsentAndNullRestoresTheDefault", func(t *testing.T) {
		t.Parallel()
		log.configure(t, "merge", `{"leaseTime":10,"retryLimit":1,"maxSize":5,"retentionEnabled":true}`)
		got := log.configure(t, "merge", `{"retryLimit":2,"maxSize":null,"retentionEnabled":null}`)
		require.Empty(t, cmp.Diff(with(optionDefaults(), "leaseTime", 10.0, "retryLimit", 2.0), got.Options))
		got = log.configure(t, "merge", `{"__mode":"merge","leaseTime":null}`)
		require.Empty(t, cmp.Diff(with(optionDefaults(), "retryLimit", 2.0), got.Options))
	})

	t.Run("ReplaceResetsOptionsButNotLabels", func(t *testing.T) {
		t.Parallel()
		log.configure(t, "replace", `{"leaseTime":10,"retryLimit":1,"namespace":"n","task":"t"}`)
		got := log.configure(t, "replace", `{"__mode":"replace","retryLimit":7}`)
		require.Empty(t, cmp.Diff(with(optionDefaults(), "retryLimit", 7.0), got.Options))
		require.Equal(t, "n t", got.Namespace+" "+got.Task)
		require.Empty(t, got.Ignored)
	})

	t.Run("ImplicitQueueKeepsLeaseAndDerivedLabels", func(t *testing.T) {
		t.Parallel()
		log.queued(t, "space.job.x", "a", "1")
		got := log.configure(t, "space.job.x", `{"retryLimit":1,"namespace":null,"task":""}`)
		require.Empty(t, cmp.Diff(with(optionDefaults(), "leaseTime", 60.0, "retryLimit", 1.0), got.Options))
		require.Equal(t, "space job", got.Namespace+" "+got.Task)
		require.Equal(t, "other job", func() string {
			got := log.configure(t, "space.job.x", `{"namespace":"other"}`)
			return got.Namespace + " " + got.Task
		}())
	})

	t.Run("UnknownOptionsAreNamedOrRefused", func(t *testing.T) {
		t.Parallel()
		got := log.configure(t, "unknown", `{"zeta":1,"alpha":null,"leaseTime":5}`)
		require.Equal(t, []string{"alpha", "zeta"}, got.Ignored)
		require.Equal(t, 5.0, got.Options["leaseTime"])
		got = log.configure(t, "unknown", `{"zeta":1,"leaseTime":6,"__strict":true}`)
		require.Equal(t, "invalid_option", got.Code)
		require.Contains(t, got.Error, `unknown option "zeta"`)
		require.Equal(t, 5.0, log.configure(t, "unknown", `{"__strict":true}`).Options["leaseTime"])
	})

	t.Run("NumbersAndBooleansAsTextAreTakenForWhatTheySay", func(t *testing.T) {
		t.Parallel()
		got := log.configure(t, "text", `{"leaseTime":"60","minPopWaitTime":"70000","dedupWindowSeconds":"-1","deadLetterQueue":"false","retentionEnabled":"True"}`)
		require.Empty(t, cmp.Diff(with(optionDefaults(), "leaseTime", 60.0, "minPopWaitTime", 60000.0, "dedupWindowSeconds", 0.0,
			"deadLetterQueue", false, "retentionEnabled", true), got.Options))
	})

	t.Run("Clamps", func(t *testing.T) {
		t.Parallel()
		got := log.configure(t, "clamps", `{"minPopWaitTime":-1,"dedupWindowSeconds":-1}`)
		require.Equal(t, []any{0.0, 0.0}, []any{got.Options["minPopWaitTime"], got.Options["dedupWindowSeconds"]})
		got = log.configure(t, "clamps", `{"minPopWaitTime":1e300,"dedupWindowSeconds":2592000}`)
		require.Equal(t, []any{60000.0, 2592000.0}, []any{got.Options["minPopWaitTime"], got.Options["dedupWindowSeconds"]})
	})

	t.Run("TenantsAreApart", func(t *testing.T) {
		t.Parallel()
		mine := log.configure(t, "tenants", `{"leaseTime":5}`)
		theirs, err := callJSON[configuration](log, `SELECT queen.configure_queue_v1('tenants', '{}', $1)`, uuid.New())
		require.NoError(t, err)
		require.NotEqual(t, mine.QueueID, theirs.QueueID)
		require.Equal(t, 300.0, theirs.Options["leaseTime"])
	})

	t.Run("ConcurrentCreatesMeetInOneQueue", func(t *testing.T) {
		t.Parallel()
		answers, errs := make([]configuration, 16), make([]error, 16)
		var group sync.WaitGroup
		for i := range answers {
			group.Go(func() {
				option := []string{"leaseTime", "retryLimit", "ttl", "maxSize"}[i%4]
				answers[i], errs[i] = callJSON[configuration](log, `SELECT queen.configure_queue_v1('race', jsonb_build_object($1::text, 77))`, option)
			})
		}
		group.Wait()
		for i := range answers {
			require.NoError(t, errs[i])
			require.Equal(t, answers[0].QueueID, answers[i].QueueID)
		}
		require.Empty(t, cmp.Diff(with(optionDefaults(), "leaseTime", 77.0, "retryLimit", 77.0, "ttl", 77.0, "maxSize", 77.0),
			log.configure(t, "race", `{}`).Options))
	})
}

func TestConfigureRefusesBadOptionsBeforeTouchingTheQueue(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.configure(t, "kept", `{"leaseTime":42}`)
	long := strings.Repeat("x", 256)
	for _, c := range []struct{ options, want string }{
		{`{"leaseTime":0}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got 0`},
		{`{"leaseTime":604801}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got 604801`},
		{`{"leaseTime":1.5}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got 1.5`},
		{`{"leaseTime":"0"}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got 0`},
		{`{"leaseTime":"soon"}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got "soon"`},
		{`{"leaseTime":"6e1"}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got "6e1"`},
		{`{"leaseTime":""}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got ""`},
		{`{"leaseTime":true}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got true`},
		{`{"leaseTime":{}}`, `option "leaseTime" must be an integer from 1 to 604800 seconds, got {}`},
		{`{"priority":1000001}`, `option "priority" must be an integer from -1000000 to 1000000, got 1000001`},
		{`{"retryLimit":-1}`, `option "retryLimit" must be an integer from 0 to 1000000 retries, got -1`},
		{`{"retryDelay":604800001}`, `option "retryDelay" must be`},
		{`{"maxSize":-1}`, `option "maxSize" must be an integer from 0 to 2147483647 messages, got -1`},
		{`{"maxSize":2147483648}`, `option "maxSize" must be an integer from 0 to 2147483647 messages, got 2147483648`},
		{`{"ttl":315360001}`, `option "ttl" must be an integer from 0 to 315360000 seconds`},
		{`{"deadLetterQueue":1}`, `option "deadLetterQueue" must be true or false, got 1`},
		{`{"dlqAfterMaxRetries":"yes"}`, `option "dlqAfterMaxRetries" must be true or false, got "yes"`},
		{`{"retentionEnabled":[]}`, `option "retentionEnabled" must be true or false, got []`},
		{`{"encryptionEnabled":"on"}`, `option "encryptionEnabled" must be true or false, got "on"`},
		{`{"delayedProcessing":-2}`, `option "delayedProcessing" must be`},
		{`{"windowBuffer":-2}`, `option "windowBuffer" must be`},
		{`{"retentionSeconds":1e400}`, `option "retentionSeconds" must be`},
		{`{"completedRetentionSeconds":-1}`, `option "completedRetentionSeconds" must be`},
		{`{"maxWaitTimeSeconds":-1}`, `option "maxWaitTimeSeconds" must be`},
		{`{"minPopWaitTime":"5s"}`, `option "minPopWaitTime" must be an integer from 0 to 60000 milliseconds, got "5s"`},
		{`{"dedupWindowSeconds":2592001}`, `option "dedupWindowSeconds" must be an integer from 0 to 2592000 seconds, got 2592001`},
		{`{"dlqRetentionSeconds":-1}`, `option "dlqRetentionSeconds" must be`},
		{`{"redeliveryDelayMs":-1}`, `option "redeliveryDelayMs" must be an integer from 0 to 86400000 milliseconds, got -1`},
		{`{"maxDeliveries":-1}`, `option "maxDeliveries" must be an integer from 0 to 1000000 deliveries, got -1`},
		{`{"namespace":5}`, `option "namespace" must be a string of at most 255 characters, got 5`},
		{`{"task":"` + long + `"}`, `option "task" must be a string of at most 255 characters, got "xxx`},
		{`{"__mode":"overwrite"}`, `mode must be "merge" or "replace", got "overwrite"`},
		{`{"__strict":"yes"}`, `strict must be true or false, got "yes"`},
		{`[1]`, `options must be a JSON object`},
		{`{"retryLimit":1,"leaseTime":-5}`, `option "leaseTime"`},
	} {
		for _, queue := range []string{"kept", "never"} {
			got := log.configure(t, queue, c.options)
			require.Equal(t, "invalid_option", got.Code, c.options)
			require.Contains(t, got.Error, c.want)
			require.False(t, got.Configured)
		}
	}
	require.Contains(t, log.configure(t, long, `{}`).Error, "at most 255 characters, got 256")
	require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.queues WHERE name <> 'kept'`))
	require.Empty(t, cmp.Diff(with(optionDefaults(), "leaseTime", 42.0), log.configure(t, "kept", `{}`).Options))
}

func TestConfigureMakesAQueueAnewThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	before := log.configure(t, "q", `{"leaseTime": 7}`)
	holder, configurer := log.begin(t), log.begin(t)
	_, err := holder.Exec(t.Context(), `SELECT 1 FROM queen.queues WHERE name = 'q' FOR UPDATE`)
	require.NoError(t, err)
	done := later(func() (configuration, error) {
		return callJSON[configuration](configurer, `SELECT queen.configure_queue_v1('q', '{"retryLimit": 9}')`)
	})
	log.waitBlocked(t, configurer)
	_, err = holder.Exec(t.Context(), `SELECT queen.delete_queue_v1('q')`)
	require.NoError(t, err)
	require.NoError(t, holder.Commit(t.Context()))

	after := <-done
	require.NoError(t, after.err)
	require.NotEqual(t, before.QueueID, after.value.QueueID)
	require.Empty(t, cmp.Diff(with(optionDefaults(), "retryLimit", 9.0), after.value.Options))
}

func TestDeleteQueue(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	other := uuid.New()
	id := log.queued(t, "q", "a", "1", "2")
	keep := []uuid.UUID{log.queued(t, "kept", "a", "1"), log.push(t, parcel{tenant: other, queue: "q", partition: "a", ids: ids("1")})[0].PartitionID}
	for _, p := range append(keep, id) {
		log.committed(t, p, "g", 0)
		for _, sql := range []string{
			`INSERT INTO queen.log_dlq (id, partition_id, consumer_group, "offset") VALUES (gen_random_uuid(), $1, 'g', 0)`,
			`INSERT INTO queen.log_traced VALUES (gen_random_uuid(), $1, 0, now())`,
			`INSERT INTO queen.message_traces (partition_id, transaction_id, data) VALUES ($1, 'x', '{}')`,
			`INSERT INTO queen.consumer_watermarks (queue_id, consumer_group) SELECT queue_id, 'g' FROM queen.log_partitions WHERE id = $1`,
			`INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
				SELECT 'g', queue_id, 'all', 'epoch' FROM queen.log_partitions WHERE id = $1`,
			`INSERT INTO queen.stats (stat_type, stat_key, queue_id) SELECT 'queue', queue_id::text, queue_id FROM queen.log_partitions WHERE id = $1`,
		} {
			log.exec(t, sql, p)
		}
	}
	answer, err := callJSON[map[string]any](log, `SELECT queen.delete_queue_v1('q')`)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"deleted": true, "queue": "q", "existed": true}, answer)
	for _, table := range []string{"log_partitions", "log_segments", "log_txns", "log_consumers", "log_dlq", "log_traced", "consumer_watermarks", "consumer_groups_metadata", "stats", "queues"} {
		require.EqualValues(t, len(keep), scan[int64](t, log, `SELECT count(*) FROM queen.`+table), table)
	}
	require.EqualValues(t, 3, scan[int64](t, log, `SELECT count(*) FROM queen.message_traces`))

	answer, err = callJSON[map[string]any](log, `SELECT queen.delete_queue_v1('q')`)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"deleted": false, "queue": "q", "existed": false, "message": "Queue not found, nothing was deleted"}, answer)
	answer, err = callJSON[map[string]any](log, `SELECT queen.delete_queue_v1('q', $1)`, other)
	require.NoError(t, err)
	require.Equal(t, true, answer["deleted"])
}
