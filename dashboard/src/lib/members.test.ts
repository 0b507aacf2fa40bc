import { expect, it } from 'vitest';
import { members } from './members';
import type { Lease } from './shapes';

const lease = (leaseId: string, partition: string, messageCount: number, acquiredAt: string | null, leaseExpiresAt: string) => ({ leaseId, partition, messageCount, acquiredAt, leaseExpiresAt }) as Lease;

it('leases of one pop are one member, the longest holder first', () => {
  expect(members([
    lease('b', 'p1', 2, '2026-01-01T00:05:00Z', '2026-01-01T01:00:00Z'), lease('a', 'p2', 1, '2026-01-01T00:02:00Z', '2026-01-01T01:00:00Z'), lease('b', 'p3', 3, '2026-01-01T00:04:00Z', '2026-01-01T00:30:00Z'),
  ])).toEqual([
    { leaseId: 'a', partitions: 1, messages: 1, since: '2026-01-01T00:02:00Z', ends: '2026-01-01T01:00:00Z' },
    { leaseId: 'b', partitions: 2, messages: 5, since: '2026-01-01T00:04:00Z', ends: '2026-01-01T00:30:00Z' },
  ]);
  expect(members([])).toEqual([]);
});

it('a beginning that is not known stays so', () => {
  const found = members([lease('a', 'p1', 1, null, '2026-01-01T01:00:00Z'), lease('a', 'p2', 1, '2026-01-01T00:00:00Z', '2026-01-01T01:00:00Z'), lease('b', 'p3', 1, '2026-01-01T00:00:00Z', '2026-01-01T01:00:00Z')]);
  expect(found.map((one) => [one.leaseId, one.since])).toEqual([['b', '2026-01-01T00:00:00Z'], ['a', null]]);
});
