import { expect, it } from 'vitest';
import { curl, queenctl, quote } from './commands';

it.each([
  ['orders', 'orders'], ['a b', "'a b'"], ["it's", "'it'\\''s'"], ['$(rm -rf /)', "'$(rm -rf /)'"], ['', "''"], ['a\u001b[31m', "$'a\\u001b[31m'"], ['`x`', "'`x`'"],
])('quote %j', (word, want) => expect(quote(word)).toBe(want));

it('leaves out flags without a value', () => {
  expect(queenctl(['queue', 'rm', 'a b'], { yes: true, group: '', rate: 0, 'dry-run': false })).toBe("queenctl queue rm 'a b' --yes --rate 0");
});

it('writes a call', () => {
  expect(curl('POST', 'http://q/api', { a: "it's" })).toBe(`curl -sS -X POST http://q/api -H 'Content-Type: application/json' -d '{"a":"it'\\''s"}'`);
});
