// Names for the palette, as the broker finds them; answers are shared with other consoles.
import { call, withQuery } from './api';

interface Names {
  queues: string[];
  groups: string[];
}

/** The first queues and groups whose names contain a text. What cannot be read is left out. */
export async function namesWith(text: string): Promise<Names> {
  const [queues, groups] = await Promise.allSettled([
    call<{ queues: { name: string }[] }>(withQuery('/api/v1/resources/queues', { contains: text, sort: 'name', limit: 20 }), { maxAge: 60 }),
    call<{ groups: { name: string }[] }>(withQuery('/api/v1/resources/consumer-groups', { contains: text, sort: 'name', limit: 200 }), { maxAge: 60 }),
  ]);
  const needle = text.toLowerCase();
  return {
    queues: queues.status === 'fulfilled' ? queues.value.value.queues.map((one) => one.name) : [],
    // A row stands there for its queue's name, too.
    groups: groups.status === 'fulfilled' ? [...new Set(groups.value.value.groups.map((one) => one.name))].filter((name) => name.toLowerCase().includes(needle)).slice(0, 20) : [],
  };
}
