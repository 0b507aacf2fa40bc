// Times to look at, on whole minutes so that consoles that look at the same time share an answer.

export const ranges = [['1', 'hour'], ['6', '6 hours'], ['24', 'day'], ['168', '7 days'], ['720', '30 days']] as const;

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

/** Puts the values of two ranges side by side, by their distance from the beginning. */
export function aligned(times: readonly number[], start: number, otherTimes: readonly number[], otherStart: number, values: readonly (number | null)[]): (number | null)[] {
  const byOffset = new Map(otherTimes.map((time, i) => [Math.round((time - otherStart) / 60), values[i] ?? null]));
  return times.map((time) => byOffset.get(Math.round((time - start) / 60)) ?? null);
}
