// What differs between two JSON values, without loss: 1.0 is not 1 here, and a key that stands there twice is compared twice.
import { read, type Node } from './json';

/**
 * changed has another value, spelled the same value written in another way (1.0 and 1, "é" and "\u00e9"), added and removed stand on
 * one side only.
 */
export type DifferenceKind = 'changed' | 'spelled' | 'added' | 'removed';

/** One place where two values differ, with what stands there as it was written. */
export interface Difference {
  /** Such as order.lines[0].sku; "" is the whole value. */
  path: string;
  kind: DifferenceKind;
  left?: string;
  right?: string;
}

export interface Comparison {
  differences: Difference[];
  /** How many values below objects and arrays are the same on both sides. */
  same: number;
  /** There are more differences than are listed. */
  more: boolean;
}

const mostDifferences = 500;

/** Compares two JSON texts. Throws JSONFault when one of them is none. */
export function compare(left: string, right: string): Comparison {
  const out: Comparison = { differences: [], same: 0, more: false };
  visit(read(left), read(right), '', out);
  return out;
}

/** Whether two texts are the same value: other spaces, another order of members and other spellings do not count. */
export function sameValue(left: string, right: string): boolean {
  return compare(left, right).differences.every((one) => one.kind === 'spelled');
}

function visit(left: Node | undefined, right: Node | undefined, path: string, out: Comparison) {
  if (!left || !right) {
    note(out, { path, kind: left ? 'removed' : 'added', left: left?.raw, right: right?.raw });
  } else if (left.raw === right.raw) {
    out.same += leaves(left);
  } else if (left.members && right.members) {
    for (const [step, a, b] of byKey(left.members, right.members)) visit(a, b, path + step, out);
  } else if (left.items && right.items) {
    for (const [index, a, b] of inOrder(left.items, right.items)) visit(a, b, `${path}[${index}]`, out);
  } else {
    note(out, { path, kind: meaning(left) === meaning(right) ? 'spelled' : 'changed', left: left.raw, right: right.raw });
  }
}

function note(out: Comparison, difference: Difference) {
  if (out.differences.length < mostDifferences) out.differences.push({ ...difference, path: difference.path.replace(/^\./, '') });
  else out.more = true;
}

function leaves(node: Node): number {
  const inner = node.items ?? node.members?.map((member) => member.value);
  return inner ? inner.reduce((sum, one) => sum + leaves(one), 0) : 1;
}

type Pair = readonly [step: string, left: Node | undefined, right: Node | undefined];

/** Members side by side: the first of a key with the first, the second with the second. */
function byKey(left: NonNullable<Node['members']>, right: NonNullable<Node['members']>): Pair[] {
  const waiting = new Map<string, Node[]>();
  for (const { key, value } of right) waiting.set(key, [...(waiting.get(key) ?? []), value]);
  const pairs: Pair[] = left.map(({ key, value }) => [step(key), value, waiting.get(key)?.shift()]);
  for (const { key, value } of right) {
    if (waiting.get(key)?.[0] !== value) continue;
    waiting.get(key)!.shift();
    pairs.push([step(key), undefined, value]);
  }
  return pairs;
}

/** Elements side by side: what is the same at the beginning and at the end stays together, so that one that was put in is one difference. */
function inOrder(left: Node[], right: Node[]): [number, Node | undefined, Node | undefined][] {
  let tail = 0;
  const fewer = Math.min(left.length, right.length);
  let head = 0;
  while (head < fewer && left[head]!.raw === right[head]!.raw) head++;
  while (tail < fewer - head && left.at(-1 - tail)!.raw === right.at(-1 - tail)!.raw) tail++;
  const pairs: [number, Node | undefined, Node | undefined][] = [];
  for (let i = 0; i < head; i++) pairs.push([i, left[i], right[i]]);
  for (let i = head; i < Math.max(left.length, right.length) - tail; i++) pairs.push([i, i < left.length - tail ? left[i] : undefined, i < right.length - tail ? right[i] : undefined]);
  for (let i = tail; i > 0; i--) pairs.push([right.length - i, left.at(-i), right.at(-i)]);
  return pairs;
}

function step(key: string): string {
  return /^[^.[\]\s"]+$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
}

/** What a value without parts says, in one spelling. */
function meaning(node: Node): string {
  if (node.kind === 'string') return `"${JSON.parse(node.raw) as string}`;
  return node.kind === 'number' ? exact(node.raw) : node.raw;
}

/** A number in one spelling, whatever its size: 1.50, 15e-1 and 1.5 are the same. */
function exact(raw: string): string {
  const [, sign, whole, part = '', power = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(raw)!;
  const digits = (whole! + part).replace(/^0+/, '');
  const short = digits.replace(/0+$/, '');
  if (!short) return '0';
  return `${sign}${short}e${BigInt(power) - BigInt(part.length) + BigInt(digits.length - short.length)}`;
}
