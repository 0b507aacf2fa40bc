// The list of groups, in the order of the address and page by page.
import { address } from './address.svelte';
import { groupKey, late } from './attention';
import { Pages } from './pages.svelte';
import type { GroupRow, GroupsAnswer } from './shapes';

/** Call it while a component is made. A queue of null reads nothing. */
export function groupPages(queue: () => string | null) {
  return new Pages<GroupRow, GroupsAnswer>(
    () => (queue() === null ? null : '/api/v1/resources/consumer-groups'),
    () => {
      const only = address.get('only');
      return {
        queue: queue() ?? '', contains: address.get('filter'), behind: only === 'behind' || undefined, neverConsumed: only === 'never' || undefined,
        minLagSeconds: only === 'late' ? late.lag : undefined, sort: address.get('sort') || '-age', limit: 100,
      };
    },
    (answer) => answer.groups,
    groupKey,
    { steady: true },
  );
}
