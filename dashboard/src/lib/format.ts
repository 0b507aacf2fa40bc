// How figures are written. Whatever is not known is written as a dash with the word "unknown" for those who listen, never as a zero.

export const unknown = '–';

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export function known(n: unknown): n is number {
  return typeof n === 'number' && Number.isFinite(n);
}

/** 1234567 as 1,234,567. */
export function count(n: number | null | undefined): string {
  return known(n) ? whole.format(n) : unknown;
}

/** A number of things, in words: "1 message", "2 messages". */
export function counted(n: number | null | undefined, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** 1234567 as 1.23 M, for places with little room. */
export function short(n: number | null | undefined): string {
  if (!known(n)) return unknown;
  const size = Math.abs(n);
  for (const [unit, step] of [
    ['G', 1e9],
    ['M', 1e6],
    ['k', 1e3],
  ] as const) {
    // What would round up to the next unit is written in it.
    if (size >= step * 0.9995) return `${trimmed(n / step)} ${unit}`;
  }
  return trimmed(n);
}

function trimmed(n: number): string {
  const size = Math.abs(n);
  const text = n.toFixed(size >= 99.95 || Number.isInteger(n) ? 0 : size >= 9.995 ? 1 : 2);
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

/** Messages a second. */
export function rate(n: number | null | undefined): string {
  return known(n) ? `${short(n)}/s` : unknown;
}

export function bytes(n: number | null | undefined): string {
  if (!known(n)) return unknown;
  let value = n;
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (Math.abs(value) < 1023.5) return `${trimmed(value)} ${unit}`;
    value /= 1024;
  }
  return `${trimmed(value)} TiB`;
}

export function percent(part: number | null | undefined): string {
  return known(part) ? `${trimmed(part)} %` : unknown;
}

/** Seconds as 45 s, 3 min 20 s, 5 h 2 min or 3 d 4 h: at most two units. */
export function duration(seconds: number | null | undefined): string {
  if (!known(seconds)) return unknown;
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 1) return seconds === 0 ? '0 s' : `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${trimmed(seconds)} s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [unit, size] of [
    ['d', 86400],
    ['h', 3600],
    ['min', 60],
    ['s', 1],
  ] as const) {
    const n = Math.floor(rest / size);
    rest -= n * size;
    if (n > 0) parts.push(`${n} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(' ') || '0 s';
}

export function millis(ms: number | null | undefined): string {
  return known(ms) ? duration(ms / 1000) : unknown;
}

/** The exact time in UTC or in the zone of the browser, which is named. */
export function time(iso: string | number | Date | null | undefined, utc: boolean): string {
  const at = date(iso);
  if (!at) return unknown;
  if (utc) return at.toISOString().replace('T', ' ').replace(/\.\d+Z$/, '') + ' UTC';
  const pad = (n: number) => String(n).padStart(2, '0');
  const offset = -at.getTimezoneOffset();
  const zone = `UTC${offset < 0 ? '-' : '+'}${pad(Math.floor(Math.abs(offset) / 60))}:${pad(Math.abs(offset) % 60)}`;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())} ${zone}`;
}

function date(iso: string | number | Date | null | undefined): Date | undefined {
  if (iso === null || iso === undefined || iso === '') return undefined;
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? undefined : at;
}

/** How long ago, by a clock in milliseconds. */
export function ago(iso: string | null | undefined, now: number): string {
  const at = date(iso);
  if (!at) return unknown;
  const seconds = (now - at.getTime()) / 1000;
  // The clocks of browser and database differ a little.
  if (seconds < 1 && seconds > -5) return 'now';
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds < 10 ? Math.round(seconds) : seconds)} ago`;
}

/** The sign of a change with its size, for comparisons with an earlier period. */
export function change(now: number | null | undefined, before: number | null | undefined): string {
  if (!known(now) || !known(before)) return unknown;
  if (before === 0) return now === 0 ? '±0 %' : 'new';
  const part = ((now - before) / before) * 100;
  if (part > 999) return `${short(now / before)} times`;
  return `${part > 0 ? '+' : part < 0 ? '−' : '±'}${trimmed(Math.abs(part))} %`;
}

/**
 * A table as CSV by RFC 4180. Texts that a spreadsheet would take for a formula get an apostrophe in front.
 */
export function csv(rows: readonly (readonly unknown[])[]): string {
  const cell = (value: unknown): string => {
    if (value === null || value === undefined) return '';
    if (typeof value === 'number') return String(value);
    let text = String(value);
    if (/^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n';
}

/** Shows characters that cannot be seen or that turn the direction of the text, so that two different names never look the same. */
export function visible(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
