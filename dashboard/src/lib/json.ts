// JSON without loss. JSON.parse rounds numbers, merges repeated keys and decodes escapes, none of which a person who looks at a message may
// be shown. This reader keeps the exact text of every value beside its structure.

export type Kind = 'object' | 'array' | 'string' | 'number' | 'boolean' | 'null';

/** A value with the exact text it was written in. */
export interface Node {
  kind: Kind;
  raw: string;
  /** Members of an object in their order, repeated keys included. */
  members?: Member[];
  /** Elements of an array. */
  items?: Node[];
}

export interface Member {
  /** The key as it was written, with quotes and escapes. */
  rawKey: string;
  key: string;
  value: Node;
}

export class JSONFault extends Error {
  constructor(
    what: string,
    readonly at: number,
  ) {
    super(`${what} at character ${at + 1}`);
  }
}

const blank = /[ \t\n\r]*/y;
const text = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const number = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const word = /true|false|null/y;

const mostDepth = 2000;

class Reader {
  private at = 0;
  constructor(private readonly source: string) {}

  whole(): Node {
    const node = this.value(0);
    this.skip();
    if (this.at < this.source.length) throw new JSONFault('unexpected text', this.at);
    return node;
  }

  private match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.source);
    if (!found) return undefined;
    this.at += found[0].length;
    return found[0];
  }

  private skip() {
    this.match(blank);
  }

  private take(mark: string): boolean {
    this.skip();
    if (this.source[this.at] !== mark) return false;
    this.at++;
    return true;
  }

  private value(depth: number): Node {
    if (depth > mostDepth) throw new JSONFault('too deeply nested', this.at);
    this.skip();
    const from = this.at;
    switch (this.source[from]) {
      case '{':
        return this.object(depth);
      case '[':
        return this.array(depth);
      case '"': {
        const raw = this.match(text);
        if (raw === undefined) throw new JSONFault('broken string', from);
        return { kind: 'string', raw };
      }
    }
    const digits = this.match(number);
    if (digits) return { kind: 'number', raw: digits };
    const literal = this.match(word);
    if (literal) return { kind: literal === 'null' ? 'null' : 'boolean', raw: literal };
    throw new JSONFault('unexpected text', from);
  }

  private object(depth: number): Node {
    const from = this.at++;
    const members: Member[] = [];
    if (!this.take('}')) {
      do {
        this.skip();
        const rawKey = this.match(text);
        if (rawKey === undefined) throw new JSONFault('a key is missing', this.at);
        if (!this.take(':')) throw new JSONFault('a colon is missing', this.at);
        members.push({ rawKey, key: JSON.parse(rawKey) as string, value: this.value(depth + 1) });
      } while (this.take(','));
      if (!this.take('}')) throw new JSONFault('an object does not end', this.at);
    }
    return { kind: 'object', raw: this.source.slice(from, this.at), members };
  }

  private array(depth: number): Node {
    const from = this.at++;
    const items: Node[] = [];
    if (!this.take(']')) {
      do items.push(this.value(depth + 1));
      while (this.take(','));
      if (!this.take(']')) throw new JSONFault('an array does not end', this.at);
    }
    return { kind: 'array', raw: this.source.slice(from, this.at), items };
  }
}

/** Reads one JSON value. Throws JSONFault. */
export function read(source: string): Node {
  return new Reader(source).whole();
}

/** A JSON value that is kept as it was written. */
export class Raw {
  constructor(readonly json: string) {}
}

/**
 * Reads an answer of the API. Members with these names become Raw, wherever they stand, and their twins in drop are left out; everything
 * else becomes plain values.
 */
export function plainExcept(source: string, keep: readonly string[], drop: readonly string[] = []): unknown {
  const plain = (node: Node): unknown => {
    if (node.members) {
      const object: Record<string, unknown> = {};
      for (const { key, value } of node.members) {
        if (keep.includes(key)) object[key] = new Raw(value.raw);
        else if (!drop.includes(key)) object[key] = plain(value);
      }
      return object;
    }
    return node.items ? node.items.map(plain) : (JSON.parse(node.raw) as unknown);
  };
  return plain(read(source));
}

/** Lays a value out over lines. Numbers and strings keep their exact text. */
export function pretty(node: Node, indent = ''): string {
  const inner = indent + '  ';
  if (node.members?.length) return '{\n' + node.members.map((m) => `${inner}${m.rawKey}: ${pretty(m.value, inner)}`).join(',\n') + `\n${indent}}`;
  if (node.items?.length) return '[\n' + node.items.map((item) => inner + pretty(item, inner)).join(',\n') + `\n${indent}]`;
  return node.members ? '{}' : node.items ? '[]' : node.raw;
}

/**
 * Finds the values on a path such as order.lines[0].id or lines[*].sku. A key with dots can be written as ["a.b"]. Repeated keys give
 * several values. Throws Error when the path cannot be read.
 */
export function find(node: Node, path: string): Node[] {
  let found = [node];
  for (const step of steps(path)) {
    found = found.flatMap((at) => {
      if (step === '*') return at.items ?? at.members?.map((m) => m.value) ?? [];
      if (typeof step === 'number') return at.items?.[step] ? [at.items[step]] : [];
      return at.members?.filter((m) => m.key === step).map((m) => m.value) ?? [];
    });
  }
  return found;
}

function steps(path: string): (string | number)[] {
  const pattern = /\.?([^.[\]\s"]+)|\[(\d+)\]|\[(\*)\]|\[("(?:[^"\\]|\\.)*")\]/y;
  const out: (string | number)[] = [];
  let at = 0;
  while (at < path.length) {
    pattern.lastIndex = at;
    const found = pattern.exec(path);
    if (!found) throw new Error(`cannot read the path from "${path.slice(at)}" on`);
    at = pattern.lastIndex;
    out.push(found[1] ?? (found[2] !== undefined ? Number(found[2]) : (found[3] ?? (JSON.parse(found[4]!) as string))));
  }
  return out;
}

/** A condition on a payload: a path and what its value must be. */
export type Condition = (payload: string) => boolean;

/**
 * Reads a filter such as `order.id = "7"`, `total > 100`, `name ~ smith` or just `order.id` (it is there). The path may start with
 * `payload.`. Numbers are compared exactly for equality (by their text when one is long), strings with their quotes or without.
 */
export function condition(filter: string): Condition {
  const found = /^\s*(.+?)\s*(!=|>=|<=|=|>|<|~)\s*(.+?)\s*$/s.exec(filter);
  const path = (found ? found[1]! : filter.trim()).replace(/^payload(?=[.[]|$)\.?/, '');
  steps(path);
  const operator = found?.[2];
  const wanted = found?.[3] ?? '';
  let wantedText = wanted;
  if (wanted.startsWith('"')) {
    try {
      wantedText = JSON.parse(wanted) as string;
    } catch {
      throw new Error(`${wanted} is a string that does not end`);
    }
  }
  return (payload) => {
    let values: Node[];
    try {
      values = find(read(payload), path);
    } catch {
      return false;
    }
    if (!operator) return values.length > 0;
    return values.some((node) => holds(node, operator, wanted, wantedText));
  };
}

function holds(node: Node, operator: string, wanted: string, wantedText: string): boolean {
  const own = node.kind === 'string' ? (JSON.parse(node.raw) as string) : node.raw;
  switch (operator) {
    case '=':
      return own === wantedText || sameNumber(node, wanted);
    case '!=':
      return own !== wantedText && !sameNumber(node, wanted);
    case '~':
      return own.toLowerCase().includes(wantedText.toLowerCase());
  }
  const [a, b] = node.kind === 'number' && !Number.isNaN(Number(wanted)) ? [Number(node.raw), Number(wanted)] : [own, wantedText];
  return operator === '>' ? a > b : operator === '<' ? a < b : operator === '>=' ? a >= b : a <= b;
}

function sameNumber(node: Node, wanted: string): boolean {
  if (node.kind !== 'number') return false;
  // Two long numbers that round to the same double are not the same number.
  const digits = (s: string) => s.replace(/[^0-9]/g, '').length;
  return digits(node.raw) <= 15 && digits(wanted) <= 15 && wanted.trim() !== '' && Number(node.raw) === Number(wanted);
}
