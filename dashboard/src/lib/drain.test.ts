import { describe, expect, it } from 'vitest';
import { drain, looked, Looks, type Look } from './drain';

const at = (...lags: number[]): Look[] => lags.map((lag, i) => ({ at: 1_000_000 + i * 15_000, lag }));

describe('until a group has caught up', () => {
  it.each([
    [[], { state: 'unknown' }],
    [at(100), { state: 'unknown' }],
    [at(0), { state: 'caught up' }],
    [at(100, 0), { state: 'caught up' }],
    [at(300, 150), { state: 'draining', perSecond: 10, over: 15, seconds: 15 }],
    [at(300, 900, 150), { state: 'draining', perSecond: 5, over: 30, seconds: 30 }],
    [at(300, 300), { state: 'standing', perSecond: 0, over: 15 }],
    [at(300, 600), { state: 'growing', perSecond: -20, over: 15 }],
  ])('%j', (looks, want) => expect(drain(looks)).toEqual(want));

  it('two looks that are close together say nothing', () => expect(drain([{ at: 0, lag: 9 }, { at: 3000, lag: 1 }]).state).toBe('unknown'));
  it('forgets what is older than ten minutes', () => {
    let looks: Look[] = [];
    for (let minute = 0; minute <= 30; minute++) looks = looked(looks, { at: minute * 60_000, lag: 1000 - minute });
    expect(looks).toHaveLength(11);
    expect(drain(looks)).toMatchObject({ state: 'draining', over: 600 });
  });
  it('an answer that is seen again, or that is older, is no look', () => {
    expect(looked(at(5), { at: 1_000_100, lag: 5 })).toEqual(at(5));
    expect(looked(at(5), { at: 900_000, lag: 9 })).toEqual(at(5));
  });
  it('keeps a bounded number of groups, the last looked at', () => {
    const looks = new Looks(2);
    for (const key of ['a', 'b', 'c']) looks.add(key, { at: 0, lag: 8 });
    expect(looks.add('c', { at: 8000, lag: 4 }).seconds).toBe(8);
    expect(looks.add('a', { at: 8000, lag: 4 }).state).toBe('unknown');
  });
});
