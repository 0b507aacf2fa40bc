// The commands that do what the buttons do. Every write shows its own, so that what was clicked once can be scripted.

import { visible } from './format';

/** A word of a shell command: as it is when that is safe, else in quotes. */
export function quote(word: string): string {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word)) return word;
  // $'…' for what a terminal would act on, and for what cannot be seen.
  if (visible(word) !== word) return "$'" + visible(word.replace(/[\\']/g, '\\$&')) + "'";
  return "'" + word.replaceAll("'", "'\\''") + "'";
}

/** A queenctl command. Flags without a value are left out; true is a flag alone. */
export function queenctl(words: readonly string[], flags: Record<string, string | number | boolean | null | undefined> = {}): string {
  const parts = ['queenctl', ...words.map(quote)];
  for (const [name, value] of Object.entries(flags)) {
    if (value === true) parts.push(`--${name}`);
    else if (value !== '' && value !== null && value !== undefined && value !== false) parts.push(`--${name}`, quote(String(value)));
  }
  return parts.join(' ');
}

/** The same as a call of the API. */
export function curl(method: string, url: string, body?: unknown): string {
  const parts = ['curl', '-sS'];
  if (method !== 'GET') parts.push('-X', method);
  parts.push(quote(url));
  if (body !== undefined) parts.push('-H', quote('Content-Type: application/json'), '-d', quote(typeof body === 'string' ? body : JSON.stringify(body)));
  return parts.join(' ');
}
