// Names for the palette, read once when it opens and shared with other consoles.
import { call as request } from './api';

export const call = request;

interface Names {
  queues: string[];
  groups: string[];
}

export async function sharedQueueNames(ask: typeof request): Promise<Names> {
  const [queues, groups] = await Promise.allSettled([
    ask<{ queues: { name: string }[] }>('/api/v1/resources/queues?stats=cached', { maxAge: 60 }),
    ask<{ name: string }[]>('/api/v1/consumer-groups', { maxAge: 60 }),
  ]);
  return {
    queues: queues.status === 'fulfilled' ? queues.value.value.queues.map((one) => one.name) : [],
    groups: groups.status === 'fulfilled' ? [...new Set(groups.value.value.map((one) => one.name))] : [],
  };
}
