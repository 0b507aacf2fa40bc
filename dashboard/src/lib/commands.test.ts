import { expect, it, vi } from 'vitest';
import { curl, queenctl, quote, serverOf } from './commands';

vi.mock('./address.svelte', () => ({ base: '/' }));

it.each([
  ['orders', 'orders'], ['a b', "'a b'"], ["it's", "'it'\\''s'"], ['$(rm -rf /)', "'$(rm -rf /)'"], ['', "''"], ['a\u001b[31m', "$'a\\x1b[31m'"], ['`x`', "'`x`'"],
])('quote %j', (word, want) => expect(quote(word)).toBe(want));

it('leaves out flags without a value', () => {
  expect(queenctl(['queue', 'rm', 'a b'], { yes: true, group: '', rate: 0, 'dry-run': false })).toBe("queenctl queue rm 'a b' --yes --rate 0");
});

it('writes a call', () => {
  expect(curl('POST', 'http://q/api', { a: "it's" })).toBe(`curl -sS -X POST http://q/api -H 'Content-Type: application/json' -d '{"a":"it'\\''s"}'`);
});

it('keeps names that look like flags names', () => {
  expect(queenctl(['queue', 'rm', '-x'], { yes: true })).toBe('queenctl queue rm --yes -- -x');
});

it.each([['http://localhost:6632', '/', ''], ['https://queen.example.com', '/', 'https://queen.example.com'], ['http://localhost:6632', '/q/', 'http://localhost:6632/q']])('names the broker %s%s', (origin, base, want) =>
  expect(serverOf(origin, base)).toBe(want));

it('never writes a token out', () => {
  expect(curl('GET', 'http://q/api', undefined, true)).toBe('curl -sS -H "Authorization: Bearer $QUEEN_TOKEN" http://q/api');
});
