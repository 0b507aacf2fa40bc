package model

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"queenmq/test/stack"
	"queenmq/test/wire"
)

// TestBrokerAgreesWithModel runs random scripts through HTTP and compares every answer, and after every step every cursor
// row, with the model.
func TestBrokerAgreesWithModel(t *testing.T) {
	t.Parallel()
	for _, row := range stack.Switches {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			checkAgainstModel(t, stack.Start(t, row.Settings), row.Settings["QUEEN_HOTLIST"] == "0")
		})
	}
}

// checkAgainstModel runs scripts on one broker. searching says that it looks for partitions in the database with every pop: it finds as
// many as the pop may have, at once. From its memory a broker may name some that turn out empty, and serves the others next.
func checkAgainstModel(t *testing.T, s *stack.Stack, searching bool) {
	t.Helper()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &machine{ctx: t.Context(), late: map[string]bool{}, searching: searching, client: s.Client, db: s.DB, name: fmt.Sprintf("model.run-%d", run), q: newQueue(), old: []string{"no-such-lease"}}
		rt.Repeat(map[string]func(*rapid.T){
			"push":        m.push,
			"pop":         m.pop,
			"popQueue":    m.popQueue,
			"ackBatch":    m.ackBatch,
			"ackLate":     m.ackLate,
			"extend":      m.extend,
			"expire":      m.expire,
			"configure":   m.configure,
			"transaction": m.transaction,
			"":            m.compare,
		})
		m.drain(rt)
	})
}

var (
	partitionNames = []string{"a", "b/2", "ç"}
	groupNames     = []string{"", "billing", "mail"}
	statuses       = []string{"completed", "completed", "completed", "failed", "retry", "dlq"}
)

// A machine drives one queue and keeps the model of it.
type machine struct {
	ctx    context.Context
	client *wire.Client
	db     *pgxpool.Pool
	name   string
	q      *queue
	held   []batch
	// old holds leases that ended: acknowledging under one must change nothing.
	old  []string
	next int
	// late names the (partition, group) whose lease was ended behind the back of a broker that remembers leases: queue pops may take
	// a moment to notice.
	late      map[string]bool
	searching bool
}

// A batch is what one pop handed out from one partition.
type batch struct {
	partition, group, lease string
	messages                []message
}

// internalGroup is the group under which the database keeps the cursor of a pop without one.
func internalGroup(group string) string {
	if group == "" {
		return "__QUEUE_MODE__"
	}
	return group
}

func (m *machine) newMessage(rt *rapid.T, p *partition) message {
	if len(p.log) > 0 && rapid.IntRange(0, 4).Draw(rt, "repeat") == 0 {
		return message{txn: rapid.SampledFrom(p.log).Draw(rt, "repeated").txn}
	}
	m.next++
	return message{txn: fmt.Sprintf("t-%d", m.next), payload: fmt.Sprintf(`{"n": %d, "big":12345678901234567890123, "s":"\u0000"}`, m.next)}
}

func (m *machine) push(rt *rapid.T) {
	items, names := m.pushItems(rt)
	verdicts, err := m.client.Push(m.ctx, items)
	noError(rt, err)
	equal(rt, len(items), len(verdicts), "verdicts")
	for i, verdict := range verdicts {
		p := m.q.partition(names[i])
		offset, fresh := p.push(message{txn: items[i].TransactionID, id: verdict.MessageID, payload: string(items[i].Payload)})
		if !fresh {
			equal(rt, "duplicate", verdict.Status, "status of item %d", i)
			equal(rt, p.log[offset].id, verdict.MessageID, "original id of item %d", i)
			continue
		}
		equal(rt, "queued", verdict.Status, "status of item %d", i)
		if offset > 0 && p.log[offset-1].id >= verdict.MessageID {
			rt.Fatalf("message id %s does not follow %s", verdict.MessageID, p.log[offset-1].id)
		}
	}
}

func (m *machine) pushItems(rt *rapid.T) (items []wire.PushItem, names []string) {
	for range rapid.IntRange(1, 6).Draw(rt, "items") {
		name := rapid.SampledFrom(partitionNames).Draw(rt, "partition")
		fresh := m.newMessage(rt, m.q.partition(name))
		if fresh.payload == "" {
			fresh.payload = `"repeat"`
		}
		items = append(items, wire.PushItem{Queue: m.name, Partition: name, TransactionID: fresh.txn, Payload: json.RawMessage(fresh.payload)})
		names = append(names, name)
	}
	return items, names
}

func (m *machine) pop(rt *rapid.T) {
	name := rapid.SampledFrom(partitionNames).Draw(rt, "partition")
	request := m.popRequest(rt)
	request.Partition = name
	answer, err := m.client.Pop(m.ctx, request)
	noError(rt, err)
	m.fileWhatIsFiled(rt, request.Group)
	if answer == nil {
		if p := m.q.partitions[name]; p != nil && p.claimable(internalGroup(request.Group)) > 0 {
			rt.Fatalf("partition %q has messages for %q but the pop was empty", name, request.Group)
		}
		return
	}
	m.deliver(rt, request, answer, 0)
}

func (m *machine) popQueue(rt *rapid.T) {
	request := m.popRequest(rt)
	request.AnyPartition = true
	request.Partitions = rapid.IntRange(0, 3).Draw(rt, "partitions")
	m.popAny(rt, request)
}

// popAny pops from any partition and reports whether messages came.
func (m *machine) popAny(rt *rapid.T, request wire.PopRequest) bool {
	answer, err := m.client.Pop(m.ctx, request)
	noError(rt, err)
	group := internalGroup(request.Group)
	m.q.register(group)
	filed := m.fileWhatIsFiled(rt, request.Group)
	available, sure := 0, 0
	for name, p := range m.q.partitions {
		if p.claimable(group) > 0 {
			available++
			if !m.late[name+"\x00"+group] {
				sure++
			}
		}
	}
	for tries := 0; answer == nil && sure == 0 && available > 0 && tries < 10; tries++ { // more than one on a machine that is slow
		request.Wait, request.Timeout = true, 3*time.Second
		answer, err = m.client.Pop(m.ctx, request)
		noError(rt, err)
		filed += m.fileWhatIsFiled(rt, request.Group)
		available = 0
		for _, p := range m.q.partitions {
			available += min(p.claimable(group), 1)
		}
	}
	if answer == nil {
		equal(rt, 0, available, "partitions with messages for %q after an empty pop", request.Group)
		return false
	}
	limit := max(request.Partitions, 1)
	claimed, messages := answer.PartitionsClaimed, len(answer.Messages)
	least := min(limit, available) - filed // a partition counts against the limit also when its message is filed
	if !m.searching {
		least = min(1, sure)
	}
	if (claimed < least || claimed > min(limit, available)) && messages+filed < request.Batch { // a message that is filed counts against the budget
		rt.Fatalf("claimed %d partitions with %d of %d messages, want %d to %d partitions", claimed, messages, request.Batch, least, min(limit, available))
	}
	m.deliver(rt, request, answer, filed)
	return true
}

func (m *machine) popRequest(rt *rapid.T) wire.PopRequest {
	return wire.PopRequest{
		Queue:   m.name,
		Group:   rapid.SampledFrom(groupNames).Draw(rt, "group"),
		Batch:   rapid.IntRange(1, 8).Draw(rt, "batch"),
		AutoAck: rapid.IntRange(0, 9).Draw(rt, "autoAck") == 0,
		Mode:    "all",
	}
}

// deliver checks an answer against the model partition by partition and takes the claims over. Messages that the pop filed may have
// counted against its budget.
func (m *machine) deliver(rt *rapid.T, request wire.PopRequest, answer *wire.Batch, filed int) {
	budget := request.Batch
	order, byPartition := []string{}, map[string][]wire.Message{}
	for _, message := range answer.Messages {
		if byPartition[message.Partition] == nil {
			order = append(order, message.Partition)
		}
		byPartition[message.Partition] = append(byPartition[message.Partition], message)
	}
	equal(rt, len(order), answer.PartitionsClaimed, "partitions claimed")
	for _, name := range order {
		delete(m.late, name+"\x00"+internalGroup(request.Group))
		p := m.q.partition(name)
		// Only where fewer came than the partition has: what was filed by a claim of its own counted against nothing.
		if got := len(byPartition[name]); got < m.q.takes(p, internalGroup(request.Group), budget, request.AutoAck) {
			left := max(got, budget-filed)
			budget, filed = left, filed-(budget-left)
		}
		want := m.q.claim(p, internalGroup(request.Group), answer.LeaseID, budget, request.AutoAck)
		got := make([]message, 0, len(byPartition[name]))
		for _, message := range byPartition[name] {
			got = append(got, modelMessage(message))
			equal(rt, m.name, message.Queue, "queue of a message")
			equal(rt, internalGroup(request.Group), message.ConsumerGroup, "group of a message")
			equal(rt, answer.LeaseID, message.LeaseID, "lease of a message")
			if p.id == "" {
				p.id = message.PartitionID
			}
			equal(rt, p.id, message.PartitionID, "partition id")
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(message{})); diff != "" {
			rt.Fatalf("delivered from %q to %q (-want +got):\n%s", name, request.Group, diff)
		}
		budget -= len(got)
		if !request.AutoAck {
			m.held = append(m.held, batch{partition: name, group: request.Group, lease: answer.LeaseID, messages: got})
		}
	}
}

// fileWhatIsFiled takes over which poison messages of the group the last pop met: it need not look at every partition. It returns how many.
func (m *machine) fileWhatIsFiled(rt *rapid.T, group string) (filed int) {
	group = internalGroup(group)
	for name, p := range m.q.partitions {
		if !m.q.poison(p, group) {
			continue
		}
		var found bool
		noError(rt, m.db.QueryRow(m.ctx, `SELECT EXISTS (SELECT 1 FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id
			JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = $2 AND d.consumer_group = $3 AND d."offset" = $4)`,
			m.name, name, group, p.cursors[group].committed+1).Scan(&found))
		if found {
			m.q.file(p, group)
			filed++
		}
	}
	return filed
}

func modelMessage(w wire.Message) message {
	return message{txn: w.TransactionID, id: w.ID, payload: string(w.Data)}
}

func (m *machine) ackBatch(rt *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	b := rapid.SampledFrom(m.held).Draw(rt, "held")
	items := m.ackItems(rt, b.messages)
	lease := b.lease
	switch rapid.IntRange(0, 9).Draw(rt, "lease") {
	case 0:
		lease = ""
	case 1:
		lease = rapid.SampledFrom(m.old).Draw(rt, "stale lease")
	}
	m.acknowledge(rt, b.partition, b.group, lease, items)
}

// ackLate acknowledges any message of a partition, delivered or not, known or not.
func (m *machine) ackLate(rt *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	b := rapid.SampledFrom(m.held).Draw(rt, "held")
	items := m.ackItems(rt, m.q.partition(b.partition).log)
	if rapid.Bool().Draw(rt, "unknown") {
		items = append(items, ack{txn: "never-pushed", status: "completed"})
	}
	m.acknowledge(rt, b.partition, b.group, rapid.SampledFrom([]string{"", b.lease}).Draw(rt, "lease"), items)
}

func (m *machine) ackItems(rt *rapid.T, from []message) []ack {
	whole := rapid.IntRange(0, 2).Draw(rt, "whole") == 0
	var items []ack
	for _, message := range from {
		if whole {
			items = append(items, ack{txn: message.txn, status: "completed"})
		} else if rapid.Bool().Draw(rt, "take") {
			items = append(items, ack{txn: message.txn, status: rapid.SampledFrom(statuses).Draw(rt, "status")})
		}
	}
	return rapid.Permutation(items).Draw(rt, "order")
}

func (m *machine) acknowledge(rt *rapid.T, name, group, lease string, items []ack) {
	p := m.q.partition(name)
	request := make([]wire.AckItem, len(items))
	for i, item := range items {
		request[i] = wire.AckItem{TransactionID: item.txn, PartitionID: p.id, Status: item.status, LeaseID: lease, Error: "error of " + item.txn}
	}
	results, err := m.client.Ack(m.ctx, group, request)
	noError(rt, err)
	equal(rt, len(items), len(results), "ack results")
	if len(items) == 0 {
		return
	}
	before := m.q.String()
	for i, want := range m.q.acknowledge(p, internalGroup(group), lease, items) {
		got := outcome{success: results[i].Success, noop: results[i].Noop, dlq: results[i].DLQ, released: results[i].LeaseReleased}
		if want.lenient {
			continue
		}
		if !want.success || want.noop {
			got.released, want.released = false, false
		}
		if got != want {
			rt.Fatalf("ack %d of %v (lease %q, group %q, partition %q): got %+v (%s), want %+v\nbefore: %s", i, items, lease, group, name, got, text(results[i].Error), want, before)
		}
	}
}

func (m *machine) extend(rt *rapid.T) {
	lease := rapid.SampledFrom(m.leases()).Draw(rt, "lease")
	renewal, err := m.client.Extend(m.ctx, lease, 600)
	noError(rt, err)
	want := 0
	for _, p := range m.q.partitions {
		for _, c := range p.cursors {
			if c.live && c.worker == lease {
				want++
			}
		}
	}
	equal(rt, want, renewal.Renewed, "renewed leases")
	equal(rt, want > 0, renewal.Success, "success of a renewal")
}

// expire lets every lease of one worker run out, as time would.
func (m *machine) expire(rt *rapid.T) {
	lease := rapid.SampledFrom(m.leases()).Draw(rt, "lease")
	_, err := m.db.Exec(m.ctx, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE worker_id = $1`, lease)
	noError(rt, err)
	for name, p := range m.q.partitions {
		for group, c := range p.cursors {
			if c.worker == lease {
				c.live = false
				m.late[name+"\x00"+group] = true
			}
		}
	}
	m.old = append(m.old, lease)
}

func (m *machine) leases() []string {
	leases := slices.Clone(m.old)
	for _, b := range m.held {
		leases = append(leases, b.lease)
	}
	return leases
}

func (m *machine) configure(rt *rapid.T) {
	m.q.retryLimit = rapid.IntRange(0, 3).Draw(rt, "retryLimit")
	m.q.deadLetters = rapid.IntRange(0, 3).Draw(rt, "deadLetters") != 0
	m.q.maxDeliveries = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(rt, "maxDeliveries")
	noError(rt, m.client.Configure(m.ctx, m.name, map[string]any{
		"retryLimit": m.q.retryLimit, "maxDeliveries": m.q.maxDeliveries, "deadLetterQueue": m.q.deadLetters, "dlqAfterMaxRetries": m.q.deadLetters, "leaseTime": 600,
	}))
}

// transaction pushes and acknowledges in one call; the model tries it on a copy and keeps the copy only on success.
func (m *machine) transaction(rt *rapid.T) {
	items, names := m.pushItems(rt)
	operations := []wire.Operation{{Type: "push", Items: items}}
	want, after := true, m.q.clone()
	stored := map[string]bool{}
	for i, item := range items {
		p := after.partition(names[i])
		if _, fresh := p.push(message{txn: item.TransactionID, payload: string(item.Payload)}); fresh {
			stored[names[i]+"\x00"+item.TransactionID] = true
		} else if !stored[names[i]+"\x00"+item.TransactionID] {
			want = false
		}
	}
	if len(m.held) > 0 {
		b := rapid.SampledFrom(m.held).Draw(rt, "held")
		acks, ok := m.transactionAcks(rt, after, b)
		operations, want = append(operations, acks...), want && ok
	}
	answer, err := m.client.Transaction(m.ctx, operations)
	noError(rt, err)
	if answer.Success != want {
		rt.Fatalf("transaction %+v: success %v (%s), want %v\n%s", operations, answer.Success, answer.Error, want, m.q)
	}
	if !want {
		return
	}
	var results []struct {
		Type          string `json:"type"`
		TransactionID string `json:"transactionId"`
		MessageID     string `json:"messageId"`
	}
	noError(rt, json.Unmarshal(answer.Results, &results))
	for i, name := range names {
		p := after.partition(name)
		p.log[p.byTxn[items[i].TransactionID]].id = results[i].MessageID
	}
	m.q = after
}

// transactionAcks draws acks of a held batch that lie above the cursor: what a signal below it means inside a transaction
// is another test's business.
func (m *machine) transactionAcks(rt *rapid.T, after *queue, b batch) (operations []wire.Operation, ok bool) {
	p := after.partition(b.partition)
	c := p.cursors[internalGroup(b.group)]
	var open []message
	for _, message := range b.messages {
		if p.byTxn[message.txn] > c.committed {
			open = append(open, message)
		}
	}
	items := m.ackItems(rt, open)
	if rapid.IntRange(0, 5).Draw(rt, "unknown") == 0 {
		items = append(items, ack{txn: "never-pushed", status: "completed"})
	}
	for _, item := range items {
		operations = append(operations, wire.Operation{
			Type: "ack", TransactionID: item.txn, PartitionID: p.id, Status: item.status, ConsumerGroup: b.group, LeaseID: b.lease,
		})
	}
	if len(items) == 0 {
		return nil, true
	}
	ok = true
	for _, result := range after.acknowledge(p, internalGroup(b.group), b.lease, items) {
		ok = ok && result.success
	}
	return operations, ok
}

// A row is a cursor as the database has it.
type row struct {
	partition, group    string
	committed, batchEnd int
	worker              string
	live                bool
	retries             int

	attemptOffset, attempts, isolateEnd int
}

// untouched rows stand at the beginning and hold nothing; when exactly they are made is the engine's own affair.
func (r row) untouched() bool {
	return r == (row{partition: r.partition, group: r.group, committed: -1, batchEnd: none, attemptOffset: none, isolateEnd: none})
}

// compare holds every cursor row of the queue against the model.
func (m *machine) compare(rt *rapid.T) {
	rows, err := m.db.Query(m.ctx, `
		SELECT p.name, c.consumer_group, c.committed, COALESCE(c.batch_end, -1), COALESCE(c.worker_id, ''),
		       COALESCE(c.worker_id IS NOT NULL AND c.lease_expires_at > clock_timestamp(), false), c.batch_retry_count,
		       COALESCE(c.attempt_offset, -1), c.attempt_count, COALESCE(c.isolate_end, -1)
		FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id JOIN queen.queues q ON q.id = p.queue_id
		WHERE q.name = $1`, m.name)
	noError(rt, err)
	var got []row
	for rows.Next() {
		var r row
		noError(rt, rows.Scan(&r.partition, &r.group, &r.committed, &r.batchEnd, &r.worker, &r.live, &r.retries, &r.attemptOffset, &r.attempts, &r.isolateEnd))
		if !r.untouched() {
			got = append(got, r)
		}
	}
	noError(rt, rows.Err())
	var want []row
	for name, p := range m.q.partitions {
		for group, c := range p.cursors {
			if r := (row{name, group, c.committed, c.batchEnd, c.worker, c.live, c.retries, c.attemptOffset, c.attempts, c.isolateEnd}); !r.untouched() {
				want = append(want, r)
			}
		}
	}
	byKey := func(rows []row) func(i, j int) bool {
		return func(i, j int) bool { return rows[i].partition+rows[i].group < rows[j].partition+rows[j].group }
	}
	sort.Slice(got, byKey(got))
	sort.Slice(want, byKey(want))
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		rt.Fatalf("cursors (-model +database):\n%s", diff)
	}
}

// drain ends every lease and reads every group to the end: what was neither settled nor dead-lettered must still come.
func (m *machine) drain(rt *rapid.T) {
	_, err := m.db.Exec(m.ctx, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE worker_id IS NOT NULL
		AND partition_id IN (SELECT p.id FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1)`, m.name)
	noError(rt, err)
	for name, p := range m.q.partitions {
		for group, c := range p.cursors {
			m.late[name+"\x00"+group] = c.live || m.late[name+"\x00"+group]
			c.live = false
		}
	}
	for _, group := range groupNames {
		for m.popAny(rt, wire.PopRequest{Queue: m.name, AnyPartition: true, Group: group, Batch: 500, Partitions: 10, Mode: "all"}) {
			for _, b := range m.held[len(m.held)-m.newlyHeld(group):] {
				items := make([]ack, len(b.messages))
				for i, message := range b.messages {
					items[i] = ack{txn: message.txn, status: "completed"}
				}
				m.acknowledge(rt, b.partition, b.group, b.lease, items)
			}
		}
		for name, p := range m.q.partitions {
			equal(rt, len(p.log), p.cursor(internalGroup(group)).settled(), "settled messages of %q in %q", group, name)
		}
	}
	m.compare(rt)
	dead := 0
	for _, p := range m.q.partitions {
		for _, c := range p.cursors {
			dead += len(c.dead)
		}
	}
	var filed int
	noError(rt, m.db.QueryRow(m.ctx, `SELECT count(*) FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id
		JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1`, m.name).Scan(&filed))
	equal(rt, dead, filed, "dead letters")
}

// newlyHeld counts the batches of the newest lease.
func (m *machine) newlyHeld(group string) int {
	n := 0
	lease := m.held[len(m.held)-1].lease
	for _, b := range m.held {
		if b.lease == lease && b.group == group {
			n++
		}
	}
	return n
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func noError(rt *rapid.T, err error) {
	rt.Helper()
	if err != nil {
		rt.Fatalf("unexpected error: %v", err)
	}
}

func equal[T comparable](rt *rapid.T, want, got T, format string, args ...any) {
	rt.Helper()
	if want != got {
		rt.Fatalf("%s: got %v, want %v", fmt.Sprintf(format, args...), got, want)
	}
}
