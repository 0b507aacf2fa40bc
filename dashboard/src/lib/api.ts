// Calls of the broker's API. Everything goes to the origin that the page came from.
import { base } from './address.svelte';
import { plainExcept } from './json';
import { session } from './session.svelte';

/** What a request failed with, in the words of the broker. */
export class APIError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
  ) {
    super(message);
  }
}

/** An answer with the seconds that it is old, as the broker says. */
export interface Answer<T> {
  value: T;
  age: number;
}

export interface Call {
  method?: 'GET' | 'POST' | 'DELETE';
  /** A body that is sent as JSON, or as it is when it is text. */
  body?: unknown;
  /** An answer may be that old, in seconds, so that many open consoles share one. */
  maxAge?: number;
  /** Members to keep as they were written, and their twins to leave out. */
  keep?: readonly string[];
  drop?: readonly string[];
  signal?: AbortSignal;
  /** A token to use in place of the session's. */
  token?: string;
}

/** One segment of a path. */
export function segment(name: string): string {
  if (name === '.' || name === '..') throw new APIError(`A browser cannot address the name "${name}": use queenctl or curl.`, 0, 'unaddressable');
  return encodeURIComponent(name);
}

/** A path with its query; empty values are left out. */
export function path(parts: TemplateStringsArray, ...names: string[]): string {
  return parts.reduce((text, part, i) => text + segment(names[i - 1]!) + part);
}

export function withQuery(at: string, query: Record<string, string | number | boolean | null | undefined>): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== '' && value !== null && value !== undefined) text.set(name, String(value));
  return text.size ? `${at}?${text}` : at;
}

export async function call<T>(at: string, options: Call = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { Accept: 'application/json', ...session.headers() };
  if (options.token) headers.Authorization = `Bearer ${options.token}`;
  if (options.body !== undefined) headers['Content-Type'] = 'application/json';
  if (options.maxAge) headers['Cache-Control'] = `max-age=${options.maxAge}`;
  let response: Response;
  try {
    response = await fetch(base + at.slice(1), {
      method: options.method ?? 'GET',
      headers,
      body: options.body === undefined ? undefined : typeof options.body === 'string' ? options.body : JSON.stringify(options.body),
      signal: options.signal,
      cache: 'no-store',
      credentials: 'same-origin',
      redirect: 'error',
    });
  } catch (fault) {
    if (options.signal?.aborted) throw fault;
    throw new APIError('The broker does not answer. It may be restarting, or the network is away.', 0, 'unreachable');
  }
  const text = await response.text();
  if (!response.ok) {
    const fault = errorOf(text, response.status);
    if (response.status === 401 && !options.token && session.state !== 'asking') session.end(session.state === 'in' ? 'The token is not valid any more.' : '');
    throw fault;
  }
  const value = (options.keep ? plainExcept(text, options.keep, options.drop) : text ? JSON.parse(text) : null) as T;
  return { value, age: Number(response.headers.get('Age') ?? 0) };
}

function errorOf(text: string, status: number): APIError {
  try {
    const body = JSON.parse(text) as { error?: string; message?: string; code?: string };
    if (body.error) return new APIError(body.message && body.message !== body.error ? `${body.error}: ${body.message}` : body.error, status, body.code ?? '');
  } catch {
    // What stands in front of the broker may answer with a page of its own.
  }
  return new APIError(`The request failed with status ${status}.`, status, '');
}

/** What an unknown error says. */
export function wordsOf(fault: unknown): string {
  return fault instanceof Error ? fault.message : String(fault);
}
