// What needs a person, worst first, each with the place where it is looked into. Rules only: no reading, no drawing. An input that is not
// known makes no finding, good or bad.
import { href } from './address.svelte';
import { count, counted, duration, known } from './format';
import type {
  BrokerRow, CapacityAnswer, ErrorShape, GroupRow, LeasesAnswer, MaintenanceAnswer, PostgresAnswer, ReadyAnswer, RetentionAnswer, WorkerPoint,
} from './shapes';
import { groupTitle } from './shapes';

export interface Finding {
  id: string;
  severity: 'bad' | 'warn';
  title: string;
  detail: string;
  href: string;
  /** What to do, as the text of the link. */
  fix: string;
}

export interface Known {
  ready?: ReadyAnswer;
  /** The groups that are furthest behind; moreGroups says that there are others that are behind. */
  groups?: readonly GroupRow[];
  moreGroups?: boolean;
  /** The lag of groups in earlier looks, oldest first, by group and queue. */
  earlier?: ReadonlyMap<string, readonly number[]>;
  abandoned?: LeasesAnswer;
  /** The leases that were held for longest, if longer than late.held. */
  held?: LeasesAnswer;
  /** The batches that were delivered again and again, at least late.deliveries times. */
  repeated?: LeasesAnswer;
  capacity?: CapacityAnswer;
  maintenance?: MaintenanceAnswer;
  postgres?: PostgresAnswer;
  brokers?: readonly BrokerRow[];
  /** The most frequent shapes of errors, and how many dead letters there are of all. */
  shapes?: readonly ErrorShape[];
  deadLetters?: number;
  retention?: RetentionAnswer;
  /** The minutes of the last quarter of an hour. */
  recent?: readonly WorkerPoint[];
  statsAge?: number;
}

/** From these on, in seconds. */
export const late = { lag: 300, veryLate: 3600, snapshot: 600, lockWait: 5, stats: 120, held: 1800, deliveries: 5 };

export function groupKey(group: Pick<GroupRow, 'name' | 'queueName'>): string {
  return JSON.stringify([group.queueName, group.name]);
}

export function findings(k: Known): Finding[] {
  const found: Finding[] = [
    ...system(k), ...postgres(k), ...capacity(k), ...groups(k), ...leases(k), ...deadLetters(k), ...deleted(k),
  ];
  return found.sort((a, b) => (a.severity === b.severity ? 0 : a.severity === 'bad' ? -1 : 1));
}

function* system({ ready, maintenance, brokers, statsAge, recent }: Known): Iterable<Finding> {
  const at = href('system');
  for (const [name, text] of Object.entries(ready?.checks ?? {})) {
    if (text !== 'ok') yield { id: `check:${name}`, severity: 'bad', title: `Check “${name}” fails`, detail: text, href: at, fix: 'Look at the checks' };
  }
  if (maintenance?.maintenanceMode) yield { id: 'push-off', severity: 'bad', title: 'Pushes are in maintenance', detail: 'Messages are kept on the brokers’ disks and stored when it ends.', href: at, fix: 'Switch pushes on' };
  if (maintenance?.popMaintenanceMode) yield { id: 'pop-off', severity: 'bad', title: 'Pops are switched off', detail: 'Every consumer gets an empty answer.', href: at, fix: 'Switch pops on' };
  const kept = maintenance?.bufferStats;
  if (maintenance && maintenance.bufferedMessages > 0) yield { id: 'buffer', severity: 'warn', title: `${count(maintenance.bufferedMessages)} messages wait in the file buffer`, detail: 'Accepted while the database was away; they are being stored.', href: at, fix: 'Look at the buffer' };
  if (kept && kept.failedCount > 0) yield { id: 'buffer-failed', severity: 'bad', title: `${count(kept.failedCount)} buffered records could not be stored`, detail: 'They lie in the directory failed/ with the reason beside them.', href: at, fix: 'Look at the buffer' };
  for (const broker of brokers ?? []) {
    if (!broker.alive) yield { id: `broker:${broker.instance}`, severity: 'warn', title: `Broker ${broker.id} is gone`, detail: 'It stopped without saying so, within the last day.', href: href('system', { state: 'gone' }), fix: 'Look at the brokers' };
  }
  if (known(statsAge) && statsAge > late.stats) yield { id: 'stats', severity: 'warn', title: `Counters are ${duration(statsAge)} old`, detail: 'The loop that computes them has not finished; what you see may be out of date.', href: at, fix: 'Look at the loops' };
  const errors = (recent ?? []).reduce((sum, point) => sum + point.dbErrors, 0);
  if (errors > 0) yield { id: 'db-errors', severity: 'warn', title: `${count(errors)} database errors in 15 minutes`, detail: 'Statements that failed and were not repeated with success.', href: href('analytics'), fix: 'See when' };
}

function* postgres({ postgres: pg }: Known): Iterable<Finding> {
  const oldest = pg?.oldestSnapshot;
  if (oldest && known(oldest.ageSeconds) && oldest.ageSeconds > late.snapshot) {
    yield {
      id: 'snapshot', severity: 'bad', title: `A transaction has been open for ${duration(oldest.ageSeconds)}`,
      detail: `Process ${oldest.pid} (${oldest.applicationName || 'no name'}, ${oldest.state ?? 'state unknown'}) keeps vacuum from freeing rows.`, href: href('system', { tab: 'database' }), fix: 'See what it runs',
    };
  }
  for (const wait of pg?.lockWaits ?? []) {
    if (known(wait.waitSeconds) && wait.waitSeconds > late.lockWait) {
      yield { id: `lock:${wait.pid}`, severity: 'warn', title: `Process ${wait.pid} has waited ${duration(wait.waitSeconds)} for a lock`, detail: `Held by ${wait.blockedBy.join(', ') || 'unknown'}.`, href: href('system', { tab: 'database' }), fix: 'See who holds it' };
    }
  }
}

function* capacity({ capacity: answer }: Known): Iterable<Finding> {
  for (const one of answer?.queues ?? []) {
    const fix = 'Look at the queue';
    if (one.full) yield { id: `full:${one.queue}`, severity: 'bad', title: `${one.queue} is full`, detail: `${count(one.queueDepth)} of ${count(one.maxSize)}: pushes are refused.`, href: href('queue', { name: one.queue, tab: 'groups' }), fix };
    else if (one.queueDepth > one.maxSize * 0.9) yield { id: `full:${one.queue}`, severity: 'warn', title: `${one.queue} is nearly full`, detail: `${count(one.queueDepth)} of ${count(one.maxSize)}.`, href: href('queue', { name: one.queue, tab: 'groups' }), fix };
  }
}

function* groups({ groups: rows, moreGroups, earlier }: Known): Iterable<Finding> {
  const worst = [...(rows ?? [])].filter((group) => group.totalLag > 0).sort((a, b) => b.maxTimeLag - a.maxTimeLag);
  let named = 0;
  for (const group of worst) {
    const where = href('group', { name: group.name, queue: group.queueName });
    const title = groupTitle(group.name);
    if (group.maxTimeLag >= late.lag) {
      if (++named > 5) continue;
      yield {
        id: `lag:${groupKey(group)}`, severity: group.maxTimeLag >= late.veryLate ? 'bad' : 'warn', title: `${title} is ${duration(group.maxTimeLag)} behind in ${group.queueName}`,
        detail: `${counted(group.totalLag, 'message')} in ${counted(group.partitionsWithLag, 'partition')}${group.state === 'Dead' ? '; it has never consumed anything' : ''}.`, href: where, fix: 'See which partitions',
      };
    } else if (rising(earlier?.get(groupKey(group)))) {
      if (++named > 5) continue;
      yield { id: `lag:${groupKey(group)}`, severity: 'warn', title: `The lag of ${title} in ${group.queueName} is rising`, detail: `${count(group.totalLag)} messages; it has grown with every look.`, href: where, fix: 'See which partitions' };
    }
  }
  if (named > 5) yield { id: 'lag:more', severity: 'warn', title: `${moreGroups ? 'At least ' : ''}${count(named - 5)} more groups are behind`, detail: 'The list of groups has all of them, the worst first.', href: href('groups', { only: 'behind' }), fix: 'List them' };
}

/** Five looks, each worse than the one before, and a lag that is worth a word. */
export function rising(looks: readonly number[] | undefined): boolean {
  if (!looks || looks.length < 5) return false;
  const last = looks.slice(-5);
  return last.every((lag, i) => i === 0 || lag > last[i - 1]!) && last[4]! >= 100;
}

function* leases({ abandoned, held, repeated }: Known): Iterable<Finding> {
  const again = repeated?.leases[0];
  if (repeated && again) {
    yield {
      id: 'repeated', severity: 'bad', title: repeated.total === 1 ? `A batch was delivered ${count(again.attemptCount)} times` : `${count(repeated.total)} batches were delivered ${late.deliveries} times or more`,
      detail: `${groupTitle(again.consumerGroup)} does not get past the head of ${again.partition} in ${again.queue}${repeated.total === 1 ? '' : ', among others'}: its consumers may die of a message there.`,
      href: href('group', { name: again.consumerGroup, queue: again.queue, sort: '-attempts', filter: repeated.total === 1 ? again.partition : '' }), fix: 'See the partition',
    };
  }
  const longest = held?.leases[0];
  if (held && longest) {
    yield {
      id: 'held', severity: 'warn', title: held.total === 1 ? `A lease has been held for ${duration(longest.heldSeconds)}` : `${count(held.total)} leases have been held for over ${duration(late.held)}`,
      detail: `${groupTitle(longest.consumerGroup)} in ${longest.queue}${held.total === 1 ? `, partition ${longest.partition}` : ', among others'}: a consumer that hangs and renews its lease looks like this.`,
      href: href('group', { name: longest.consumerGroup, queue: longest.queue, only: 'leased', filter: held.total === 1 ? longest.partition : '' }), fix: 'See who holds it, end it',
    };
  }
  const n = abandoned?.abandoned ?? abandoned?.total ?? 0;
  const first = abandoned?.leases[0];
  if (n > 0 && first) {
    yield {
      id: 'abandoned', severity: 'warn', title: n === 1 ? 'A batch was abandoned' : `${count(n)} batches were abandoned`,
      detail: `Their consumers let the lease run out, and nobody has taken them since; one is ${groupTitle(first.consumerGroup)} in ${first.queue}.`,
      href: href('group', { name: first.consumerGroup, queue: first.queue, only: 'abandoned' }), fix: 'See which partitions',
    };
  }
}

function* deadLetters({ shapes, deadLetters: all, recent }: Known): Iterable<Finding> {
  const fresh = (recent ?? []).reduce((sum, point) => sum + point.dlqCount, 0);
  const top = shapes?.[0];
  if (fresh > 0) yield { id: 'dlq', severity: 'bad', title: fresh === 1 ? 'A message became a dead letter' : `${count(fresh)} messages became dead letters`, detail: `In the last 15 minutes.${top ? ` Most frequent of all: ${top.sample}` : ''}`, href: href('dead-letters'), fix: 'See why' };
  else if (top) yield { id: 'dlq', severity: 'warn', title: `${counted(all ?? shapes!.reduce((sum, one) => sum + one.count, 0), 'dead letter')} wait for a decision`, detail: `Most frequent: ${top.sample}`, href: href('dead-letters'), fix: 'Bring back or delete' };
}

function* deleted({ retention }: Known): Iterable<Finding> {
  const n = retention?.totals.evictionMsgs ?? 0;
  if (n > 0) yield { id: 'evicted', severity: 'bad', title: `${count(n)} messages were deleted because they waited too long`, detail: 'maxWaitTimeSeconds deletes also what nobody has read.', href: href('system', { tab: 'retention' }), fix: 'See when' };
}
