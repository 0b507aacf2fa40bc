// Times to look at, on whole minutes so that consoles that look at the same time share an answer.

export const ranges = [['1', 'hour'], ['6', '6 hours'], ['24', 'day'], ['168', '7 days'], ['720', '30 days']] as const;

/** A week in milliseconds. */
export const week = 7 * 24 * 3_600_000;

/** The hours that an address names, when they are among the ranges; else the first. */
export function hoursOf(text: string): number {
  return Number(ranges.find(([id]) => id === text)?.[0] ?? ranges[0][0]);
}

/** A time that was entered, as the broker reads it. What is no time is left as it is: the broker refuses it, where leaving it out would show more. */
export function instant(text: string, utc: boolean): string {
  const at = new Date(/^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?$/.test(text) && utc ? `${text}Z` : text);
  return Number.isNaN(at.getTime()) ? text : at.toISOString();
}

export interface Range {
  from: string;
  to: string;
}

/** The range of so many hours that ends now, or that ends where the last `back` ranges begin. */
export function range(hours: number, now: number, back = 0): Range {
  const step = hours > 24 ? 15 * 60_000 : 60_000;
  const end = Math.floor(now / step) * step - back * hours * 3_600_000;
  return { from: iso(end - hours * 3_600_000), to: iso(end) };
}

function iso(at: number): string {
  return new Date(at).toISOString().replace('.000', '');
}

/**
 * The points whose time is over, by the clock of the broker: the one that is still being counted would look like a fall. minutes is the length
 * of each.
 */
export function ended<T>(points: readonly T[], begin: (point: T) => string, minutes: number, now: string): T[] {
  return points.filter((point) => Date.parse(begin(point)) + minutes * 60_000 <= Date.parse(now));
}

/** Puts the values of two ranges side by side, by their distance from the beginning. */
export function aligned(times: readonly number[], start: number, otherTimes: readonly number[], otherStart: number, values: readonly (number | null)[]): (number | null)[] {
  const byOffset = new Map(otherTimes.map((time, i) => [Math.round((time - otherStart) / 60), values[i] ?? null]));
  return times.map((time) => byOffset.get(Math.round((time - start) / 60)) ?? null);
}
