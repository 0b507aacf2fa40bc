import { describe, expect, it } from 'vitest';
import * as format from './format';

describe('unknown is not zero', () => {
  it.each([
    format.count, format.short, format.rate, format.bytes, format.percent, format.duration, format.millis,
  ])('%o', (write) => {
    for (const nothing of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) expect(write(nothing)).toBe(format.unknown);
    expect(write(0)).toMatch(/^0/);
  });
});

it.each([
  [0, '0'], [7, '7'], [0.5, '0.5'], [999, '999'], [999.9, '1 k'], [1000, '1 k'], [1234, '1.23 k'], [12345, '12.3 k'], [999_999, '1 M'], [1_234_567, '1.23 M'],
  [5e9, '5 G'], [-1500, '-1.5 k'], [100, '100'], [1_000_000, '1 M'],
])('short %d', (n, want) => expect(format.short(n)).toBe(want));

it.each([
  [0, '0 B'], [1023, '1023 B'], [1024, '1 KiB'], [1536, '1.5 KiB'], [10 * 1024 ** 2, '10 MiB'], [3 * 1024 ** 4, '3 TiB'],
])('bytes %d', (n, want) => expect(format.bytes(n)).toBe(want));

it.each([
  [0, '0 s'], [0.0004, '1 ms'], [0.25, '250 ms'], [1.5, '1.5 s'], [45, '45 s'], [60, '1 min'], [200, '3 min 20 s'], [3600, '1 h'], [18_120, '5 h 2 min'],
  [3 * 86_400 + 4 * 3600, '3 d 4 h'], [86_400 + 61, '1 d'], [-90, '-1 min 30 s'],
])('duration %d', (n, want) => expect(format.duration(n)).toBe(want));

describe('time', () => {
  it('names its zone', () => {
    expect(format.time('2026-09-14T06:21:08.417Z', true)).toBe('2026-09-14 06:21:08 UTC');
    expect(format.time('2026-09-14T06:21:08Z', false)).toMatch(/^2026-09-1[345] \d\d:\d\d:08 UTC[+-]\d\d:\d\d$/);
  });
  it('knows no time for what is none', () => {
    for (const none of [null, undefined, '', 'yesterday']) expect(format.time(none, true)).toBe(format.unknown);
  });
  it('tells how long ago', () => {
    const now = Date.parse('2026-09-14T06:00:00Z');
    expect(format.ago('2026-09-14T05:58:00Z', now)).toBe('2 min ago');
    expect(format.ago('2026-09-14T06:00:03Z', now)).toBe('now');
    expect(format.ago('2026-09-14T07:00:00Z', now)).toBe('in 1 h');
    expect(format.ago(null, now)).toBe(format.unknown);
  });
});

it.each([
  [110, 100, '+10 %'], [5000, 1, '5 k times'], [90, 100, '−10 %'], [100, 100, '±0 %'], [5, 0, 'new'], [0, 0, '±0 %'], [null, 1, format.unknown],
])('change from %d to %d', (now, before, want) => expect(format.change(now, before)).toBe(want));

it('writes CSV that no spreadsheet runs', () => {
  expect(format.csv([['a', 'b,"c"'], ['=1+1', -5], ['+x', null], ['@y', 'line\nbreak']])).toBe('a,"b,""c"""\r\n\'=1+1,-5\r\n\'+x,\r\n\'@y,"line\nbreak"\r\n');
});

it('shows what cannot be seen', () => {
  expect(format.visible('a\u202eb\u0000c\u200bd')).toBe('a\\u202eb\\u0000c\\u200bd');
  expect(format.visible('plain é 日本 😀')).toBe('plain é 日本 😀');
});
