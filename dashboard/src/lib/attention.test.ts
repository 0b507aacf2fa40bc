import { describe, expect, it, vi } from 'vitest';
import { findings, groupKey, late, rising, type Known } from './attention';
import type { GroupRow, Lease, PostgresAnswer, WorkerPoint } from './shapes';

vi.mock('./address.svelte', () => ({ href: (page: string, query: Record<string, string> = {}) => `/${page}?${new URLSearchParams(query)}` }));

const group = (over: Partial<GroupRow> = {}): GroupRow => ({
  name: 'billing', queueName: 'orders', partitionCursors: 4, partitionsWithLag: 2, totalLag: 10, maxTimeLag: 1, state: 'Stable', subscriptionMode: null,
  subscriptionTimestamp: null, ...over,
});

const lease = (over: Partial<Lease> = {}): Lease => ({
  queue: 'orders', partition: 'p', partitionId: 'i', consumerGroup: 'billing', leaseId: 'l', acquiredAt: null, leaseExpiresAt: '', secondsRemaining: 1, heldSeconds: 1, messageCount: 1,
  batchRetryCount: 0, attemptCount: 1, ...over,
});

const postgres = (over: Partial<PostgresAnswer>): PostgresAnswer => ({ timestamp: '', database: 'd', databaseCache: { cacheHitRatio: 99 }, deadTuples: [], activeQueries: [], tableSizes: [], ...over });

describe('findings', () => {
  it('says nothing about what is not known', () => expect(findings({})).toEqual([]));

  const cases: [name: string, known: Known, title: RegExp, severity: string][] = [
    ['failing check', { ready: { ready: false, checks: { schema: 'not applied', database: 'ok' } } }, /“schema” fails/, 'bad'],
    ['late group', { groups: [group({ maxTimeLag: late.lag })] }, /billing is 5 min behind in orders/, 'warn'],
    ['very late group', { groups: [group({ maxTimeLag: late.veryLate })] }, /1 h behind/, 'bad'],
    ['rising lag', { groups: [group({ totalLag: 300 })], earlier: new Map([[groupKey(group()), [100, 120, 150, 200, 300]]]) }, /is rising/, 'warn'],
    ['poison', { repeated: { total: 1, leases: [lease({ attemptCount: 7 })] } }, /A batch was delivered 7 times/, 'bad'],
    ['stuck consumer', { held: { total: 3, leases: [lease({ heldSeconds: 4000 })] } }, /3 leases have been held for over 30 min/, 'warn'],
    ['abandoned', { abandoned: { total: 1, abandoned: 1, leases: [lease()] } }, /A batch was abandoned/, 'warn'],
    ['old snapshot', { postgres: postgres({ oldestSnapshot: { pid: 7, applicationName: 'psql', state: 'idle in transaction', ageSeconds: late.snapshot + 1, xidAge: 5, query: 'BEGIN' } }) }, /open for 10 min/, 'bad'],
    ['lock wait', { postgres: postgres({ lockWaits: [{ pid: 9, blockedBy: [7], waitEvent: 'transactionid', waitSeconds: 30, query: 'x' }] }) }, /Process 9 has waited 30 s/, 'warn'],
    ['database errors', { recent: [{ dbErrors: 3, dlqCount: 0 } as WorkerPoint] }, /3 database errors/, 'warn'],
    ['new dead letters', { recent: [{ dbErrors: 0, dlqCount: 2 } as WorkerPoint] }, /2 messages became dead letters/, 'bad'],
    ['kept on disk', { maintenance: { maintenanceMode: false, bufferedMessages: 4, bufferHealthy: true, bufferStats: { pendingCount: 4, failedCount: 0 } } }, /4 messages wait in the file buffer/, 'warn'],
    ['pops off', { maintenance: { maintenanceMode: false, popMaintenanceMode: true, bufferedMessages: 0, bufferHealthy: true } }, /Pops are switched off/, 'bad'],
    ['full queue', { capacity: { queues: [{ queue: 'q', maxSize: 10, queueDepth: 10, remainingCapacity: 0, full: true }] } }, /q is full/, 'bad'],
    ['nearly full queue', { capacity: { queues: [{ queue: 'q', maxSize: 100, queueDepth: 95, remainingCapacity: 5, full: false }] } }, /nearly full/, 'warn'],
    ['pushes off', { maintenance: { maintenanceMode: true, bufferedMessages: 0, bufferHealthy: true } }, /maintenance/, 'bad'],
    ['dead broker', { brokers: [{ id: 'b', instance: 'i', version: '1', address: '', startedAt: '', lastSeen: '', alive: false, self: false }] }, /Broker b is gone/, 'warn'],
    ['dead letters', { shapes: [{ shape: 's', sample: 'boom', count: 3, queues: ['q'], firstFailedAt: '', lastFailedAt: '' }] }, /3 dead letters wait/, 'warn'],
    ['old counters', { statsAge: late.stats + 1 }, /old/, 'warn'],
    ['deleted unread', { retention: { bucketMinutes: 1, series: [], totals: { retentionMsgs: 0, completedRetentionMsgs: 0, evictionMsgs: 4, totalMsgs: 4, eventCount: 1 } } }, /4 messages were deleted/, 'bad'],
  ];
  it.each(cases)('%s', (_, known, title, severity) => {
    const found = findings(known);
    expect(found).toHaveLength(1);
    expect(found[0]!.title).toMatch(title);
    expect(found[0]!.severity).toBe(severity);
    expect(found[0]!.href).toMatch(/^\//);
  });

  it('stays silent when all is well', () => {
    expect(findings({
      ready: { ready: true, checks: { database: 'ok' } }, groups: [group()], capacity: { queues: [] }, statsAge: 3, shapes: [], brokers: [],
      maintenance: { maintenanceMode: false, popMaintenanceMode: false, bufferedMessages: 0, bufferHealthy: true },
    })).toEqual([]);
  });

  it('says at least where it saw only the worst', () => expect(findings({ moreGroups: true, groups: Array.from({ length: 9 }, (_, i) => group({ name: `g${i}`, maxTimeLag: late.veryLate })) }).at(-1)!.title).toBe('At least 4 more groups are behind'));

  it('puts the worst first and names at most five groups', () => {
    const found = findings({ groups: Array.from({ length: 9 }, (_, i) => group({ name: `g${i}`, maxTimeLag: late.lag + i * 1000 })) });
    expect(found).toHaveLength(6);
    expect(found[0]!.severity).toBe('bad');
    expect(found.at(-1)!.title).toMatch(/4 more groups/);
  });
});

it.each([[undefined, false], [[100, 120, 130, 140], false], [[100, 110, 120, 130, 140], true], [[1, 2, 3, 4, 5], false], [[100, 110, 110, 130, 140], false]])('rising %j', (looks, want) =>
  expect(rising(looks as number[] | undefined)).toBe(want));
