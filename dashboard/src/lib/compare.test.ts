import { describe, expect, it } from 'vitest';
import { compare, sameValue } from './compare';

const lines = (left: string, right: string) => compare(left, right).differences.map((one) => `${one.path || '$'} ${one.kind} ${one.left ?? ''}→${one.right ?? ''}`);

describe('two values', () => {
  it.each([
    ['{"a":1,"b":[1,2]}', '{ "b": [1, 2], "a": 1 }', []],
    ['{"order":{"id":"7","total":10}}', '{"order":{"id":"7","total":12}}', ['order.total changed 10→12']],
    ['{"a":1}', '{"a":1,"b":2}', ['b added →2']],
    ['{"a":1,"b":2}', '{"a":1}', ['b removed 2→']],
    ['{"a":1}', '{"a":"1"}', ['a changed 1→"1"']],
    ['{"a":{}}', '{"a":[]}', ['a changed {}→[]']],
    ['1', 'null', ['$ changed 1→null']],
    ['{"a b":1,"c.d":2}', '{"a b":2,"c.d":3}', ['["a b"] changed 1→2', '["c.d"] changed 2→3']],
    // What other viewers lose.
    ['12345678901234567890', '12345678901234567891', ['$ changed 12345678901234567890→12345678901234567891']],
    ['{"n":1.10}', '{"n":1.1}', ['n spelled 1.10→1.1']],
    ['[15e-1,0.0,-0]', '[1.50,0,0]', ['[0] spelled 15e-1→1.50', '[1] spelled 0.0→0', '[2] spelled -0→0']],
    ['"\\u00e9"', '"é"', ['$ spelled "\\u00e9"→"é"']],
    ['{"a":1,"a":2}', '{"a":1,"a":3}', ['a changed 2→3']],
    ['{"a":1,"a":2}', '{"a":1}', ['a removed 2→']],
    ['{"__proto__":1}', '{"__proto__":2}', ['__proto__ changed 1→2']],
    // One that was put in or taken out is one difference.
    ['[1,2,3]', '[1,9,2,3]', ['[1] added →9']],
    ['[1,2,3]', '[2,3]', ['[0] removed 1→']],
    ['[1,2,3]', '[1,4,3]', ['[1] changed 2→4']],
    ['[]', '[{"a":1}]', ['[0] added →{"a":1}']],
  ])('%s and %s', (left, right, want) => expect(lines(left, right)).toEqual(want));

  it('counts what is the same', () => expect(compare('{"a":[1,2,{"b":3}],"c":4}', '{"a":[1,2,{"b":3}],"c":5}').same).toBe(3));
  it('lists a bounded number of differences and says that there are more', () => {
    const of = (n: number) => JSON.stringify(Array.from({ length: 900 }, (_, i) => i * n + 1));
    expect(compare(of(2), of(3))).toMatchObject({ more: true, differences: { length: 500 } });
  });
  it('says when two texts are one value', () => {
    expect(sameValue('{"a":1.0,"b":"x"}', '{ "b":"x", "a":1 }')).toBe(true);
    expect(sameValue('[1,2]', '[2,1]')).toBe(false);
  });
  it('mirrored, what was added was removed', () => {
    const turned = { changed: 'changed', spelled: 'spelled', added: 'removed', removed: 'added' } as const;
    const [a, b] = ['{"x":[1,2,3],"y":{"z":1,"z":2},"w":1}', '{"x":[1,3],"y":{"z":1},"v":1.0,"w":1.0}'];
    expect(compare(b, a).differences.map((one) => `${one.path}${turned[one.kind]}`).sort()).toEqual(compare(a, b).differences.map((one) => `${one.path}${one.kind}`).sort());
  });
});
