// Who works for a group, as far as leases tell: one pop is one holder.
import type { Lease } from './shapes';

/** What one pop holds. */
export interface Member {
  leaseId: string;
  partitions: number;
  messages: number;
  /** The first time of its leases that is known, and when the first of them ends. */
  since: string | null;
  ends: string;
}

/** The holders of some leases, those that hold longest first; what is not known of one lease is not known of its holder. */
export function members(leases: readonly Lease[]): Member[] {
  const all = new Map<string, Member>();
  for (const lease of leases) {
    const one = all.get(lease.leaseId);
    if (!one) {
      all.set(lease.leaseId, { leaseId: lease.leaseId, partitions: 1, messages: lease.messageCount, since: lease.acquiredAt, ends: lease.leaseExpiresAt });
      continue;
    }
    one.partitions++;
    one.messages += lease.messageCount;
    one.since = one.since === null || lease.acquiredAt === null ? null : earlier(one.since, lease.acquiredAt);
    one.ends = earlier(one.ends, lease.leaseExpiresAt);
  }
  return [...all.values()].sort((a, b) => Date.parse(a.since ?? '9999-01-01') - Date.parse(b.since ?? '9999-01-01'));
}

function earlier(a: string, b: string): string {
  return Date.parse(a) <= Date.parse(b) ? a : b;
}
