// How long a group needs until it has caught up, at the pace that the open page has seen. The broker keeps no history of the lag of a
// group, so that a page that was just opened does not know.

/** What a group had before it at a moment, in milliseconds since 1970. */
export interface Look {
  at: number;
  lag: number;
}

export interface Drain {
  state: 'unknown' | 'caught up' | 'draining' | 'standing' | 'growing';
  /** Seconds until nothing is left at this pace, while it is draining. */
  seconds?: number;
  /** By how much the lag falls in a second; below zero it grows. */
  perSecond?: number;
  /** The seconds that were looked at. */
  over?: number;
}

/** What is older says little about the pace of now. */
const longest = 10 * 60_000;
/** Figures of two looks that are closer together are mostly chance. */
const shortest = 4000;

/** Adds a look to those of a group; looks that answer from before the last one are left out. */
export function looked(looks: readonly Look[], look: Look): Look[] {
  const last = looks.at(-1);
  if (last && look.at - last.at < 1000) return [...looks];
  return [...looks.filter((one) => look.at - one.at <= longest), look];
}

export function drain(looks: readonly Look[]): Drain {
  const last = looks.at(-1);
  if (!last) return { state: 'unknown' };
  if (last.lag === 0) return { state: 'caught up' };
  const first = looks[0]!;
  if (last.at - first.at < shortest) return { state: 'unknown' };
  const over = (last.at - first.at) / 1000;
  const perSecond = (first.lag - last.lag) / over;
  if (perSecond === 0) return { state: 'standing', perSecond, over };
  return perSecond > 0 ? { state: 'draining', perSecond, over, seconds: last.lag / perSecond } : { state: 'growing', perSecond, over };
}

/** The looks of each group, as long as the page is open; those that were not looked at for the longest time go. */
export class Looks {
  private readonly of = new Map<string, Look[]>();
  constructor(private readonly most = 500) {}

  add(key: string, look: Look): Drain {
    const looks = looked(this.of.get(key) ?? [], look);
    this.of.delete(key);
    this.of.set(key, looks);
    if (this.of.size > this.most) this.of.delete(this.of.keys().next().value!);
    return drain(looks);
  }
}

export const looks = new Looks();
