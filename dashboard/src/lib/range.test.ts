import { expect, it } from 'vitest';
import { aligned, hoursOf, instant, range } from './range';

it('ends on a whole minute, and the range before ends where this one begins', () => {
  const now = Date.parse('2026-09-14T06:21:08.417Z');
  const one = range(1, now);
  expect(one).toEqual({ from: '2026-09-14T05:21:00Z', to: '2026-09-14T06:21:00Z' });
  expect(range(1, now, 1)).toEqual({ from: '2026-09-14T04:21:00Z', to: '2026-09-14T05:21:00Z' });
  expect(range(168, now).to).toBe('2026-09-14T06:15:00Z');
});

it('puts what is as far from the beginning side by side, and knows nothing of the rest', () => {
  expect(aligned([100 * 60, 101 * 60, 102 * 60], 100 * 60, [40 * 60, 42 * 60], 40 * 60, [7, 9])).toEqual([7, null, 9]);
});

it.each([
  ['2026-11-30T10:00', '2026-11-30T10:00:00.000Z'], ['2026-11-30T10:00:01.5', '2026-11-30T10:00:01.500Z'], ['2026-11-30T10:00Z', '2026-11-30T10:00:00.000Z'], ['2026-11-30T10:00+02:00', '2026-11-30T08:00:00.000Z'],
  ['', ''], ['<img>', '<img>'], ['2026-99-30T10:00', '2026-99-30T10:00'],
])('reads the time %j', (text, want) => expect(instant(text, true)).toBe(want));

it.each([['6', 6], ['', 1], ['1e15', 1], ['-1', 1], ['<img>', 1]])('reads the hours %j', (text, want) => expect(hoursOf(text)).toBe(want));
