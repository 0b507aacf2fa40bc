import { describe, expect, it } from 'vitest';
import { JSONFault, Raw, condition, find, plainExcept, pretty, read } from './json';
import examples from './conditions.json';

describe('read', () => {
  it('keeps every digit, key and escape', () => {
    const source = '{ "big":12345678901234567890, "small":1.10, "exp":1E400, "a":1,"a":2, "text":"\\u0000\\ud800\\/", "nested":[ {"x":-0.0} ] }';
    const node = read(source);
    expect(node.raw).toBe(source);
    expect(node.members!.map((m) => [m.rawKey, m.value.raw])).toEqual([
      ['"big"', '12345678901234567890'],
      ['"small"', '1.10'],
      ['"exp"', '1E400'],
      ['"a"', '1'],
      ['"a"', '2'],
      ['"text"', '"\\u0000\\ud800\\/"'],
      ['"nested"', '[ {"x":-0.0} ]'],
    ]);
    expect(node.members![6]!.value.items![0]!.members![0]!.value.raw).toBe('-0.0');
  });

  it.each(['true', ' null ', '"a"', '0', '-1.5e-7', '[]', '{}', '[[],{}]', '"\u2028"'])('reads %j', (source) => {
    expect(read(source).raw).toBe(source.trim());
  });

  it.each(['', '{', '[1,]', '{"a"}', '{"a":1,}', '01', '1.', '+1', '"\n"', '"\\x"', 'nul', '1 2', "{'a':1}"])('refuses %j', (source) => {
    expect(() => read(source)).toThrow(JSONFault);
  });

  it('agrees with JSON.parse on what is JSON', () => {
    const samples = ['{"a":[1,2,{"b":null}],"c":"\\n"}', '[1,2', '{"a":1}}', '"', '[0.1e1]', '\ufeff1', '{"":0}', '[,1]'];
    for (const sample of samples) {
      let parses = true;
      try {
        JSON.parse(sample);
      } catch {
        parses = false;
      }
      if (parses) expect(read(sample).raw).toBe(sample);
      else expect(() => read(sample)).toThrow();
    }
  });

  it('refuses to go deeper than the stack', () => {
    expect(() => read('['.repeat(100_000))).toThrow(/deeply/);
  });
});

describe('pretty', () => {
  it('changes white space only', () => {
    const source = '{"a":[1.0,12345678901234567890],"e":{},"f":[],"s":"\\u00e9"}';
    expect(pretty(read(source))).toBe('{\n  "a": [\n    1.0,\n    12345678901234567890\n  ],\n  "e": {},\n  "f": [],\n  "s": "\\u00e9"\n}');
    expect(pretty(read(source)).replace(/\s/g, '')).toBe(source);
  });
});

describe('plainExcept', () => {
  it('leaves payloads as they were written', () => {
    const answer = plainExcept('{"messages":[{"id":"x","offset":7,"data":1e2,"payload":{ "n":12345678901234567890 }}]}', ['payload'], ['data']) as {
      messages: { payload: Raw }[];
    };
    expect(answer).toEqual({ messages: [{ id: 'x', offset: 7, payload: new Raw('{ "n":12345678901234567890 }') }] });
  });
});

describe('find', () => {
  const node = read('{"order":{"id":7,"lines":[{"sku":"a"},{"sku":"b"}]},"a.b":1,"x":1,"x":2}');
  it.each([
    ['order.id', ['7']],
    ['order.lines[1].sku', ['"b"']],
    ['order.lines[*].sku', ['"a"', '"b"']],
    ['["a.b"]', ['1']],
    ['x', ['1', '2']],
    ['nope.deep', []],
  ])('%s', (path, want) => expect(find(node, path).map((n) => n.raw)).toEqual(want));
  it('says where a path is broken', () => expect(() => find(node, 'a[b')).toThrow(/"\[b"/));
});

describe('condition', () => {
  // The broker judges by the same rules: both read the same examples.
  it.each(examples)('$payload', ({ payload, fits, fitsNot }) => {
    for (const one of fits) expect(condition(one)(payload), one).toBe(true);
    for (const one of fitsNot) expect(condition(one)(payload), one).toBe(false);
  });
  const payload = '{"order":{"id":"7","total":12.50,"big":12345678901234567891},"name":"Ann Smith"}';
  it.each([
    ['payload.order.id = "7"', true],
    ['order.id = 7', true],
    ['order.id = 8', false],
    ['order.total = 12.5', true],
    ['order.total >= 12.5', true],
    ['order.total > 100', false],
    ['order.big = 12345678901234567891', true],
    ['order.big = 12345678901234567892', false],
    ['name ~ smith', true],
    ['name != "Ann Smith"', false],
    ['order.total', true],
    ['order.none', false],
  ])('%s', (filter, want) => expect(condition(filter)(payload)).toBe(want));
  it('refuses what it cannot read', () => {
    expect(() => condition('a[')).toThrow();
    expect(() => condition('a = "x')).toThrow(/does not end/);
  });
  it('never holds for what is no JSON', () => expect(condition('a')('{')).toBe(false));
});
