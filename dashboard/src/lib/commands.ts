// The commands that do what the buttons do. Every write shows its own, so that what was clicked once can be scripted.
import { base } from './address.svelte';
import { visible } from './format';

/** A word of a shell command: as it is when that is safe, else in quotes. */
export function quote(word: string): string {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word)) return word;
  // $'…' for what a terminal would act on, and for what cannot be seen: byte by byte, which every shell's locale understands.
  if (visible(word) !== word) return "$'" + [...word].map(written).join('') + "'";
  return "'" + word.replaceAll("'", "'\\''") + "'";
}

const bytes = new TextEncoder();

function written(character: string): string {
  if (visible(character) === character) return character === '\\' || character === "'" ? `\\${character}` : character;
  return [...bytes.encode(character)].map((byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('');
}

/** The broker that the page came from, unless it is where queenctl looks by itself: a command that is pasted must not reach another one. */
export function serverOf(origin: string, base: string): string {
  const address = origin + base.replace(/\/$/, '');
  return address === 'http://localhost:6632' ? '' : address;
}

const server = typeof location === 'undefined' ? '' : serverOf(location.origin, base);

/** A queenctl command. Flags without a value are left out; true is a flag alone. */
export function queenctl(words: readonly string[], flags: Record<string, string | number | boolean | null | undefined> = {}): string {
  const parts: string[] = [];
  const all: typeof flags = { ...flags, server };
  for (const [name, value] of Object.entries(all)) {
    if (value === true) parts.push(`--${name}`);
    else if (value !== '' && value !== null && value !== undefined && value !== false) parts.push(`--${name}`, quote(String(value)));
  }
  const quoted = words.map(quote);
  // A name that looks like a flag stands behind the end of the flags.
  const dashed = words.findIndex((word) => word.startsWith('-'));
  return ['queenctl', ...(dashed < 0 ? [...quoted, ...parts] : [...quoted.slice(0, dashed), ...parts, '--', ...quoted.slice(dashed)])].join(' ');
}

/** The same as a call of the API. */
export function curl(method: string, url: string, body?: unknown, signedIn = false): string {
  const parts = ['curl', '-sS'];
  // The token itself is never written out.
  if (signedIn) parts.push('-H', '"Authorization: Bearer $QUEEN_TOKEN"');
  if (method !== 'GET') parts.push('-X', method);
  parts.push(quote(url));
  if (body !== undefined) parts.push('-H', quote('Content-Type: application/json'), '-d', quote(typeof body === 'string' ? body : JSON.stringify(body)));
  return parts.join(' ');
}
