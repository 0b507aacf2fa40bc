// The address bar holds what is shown: the page in the path, everything else in the query. A link that is copied shows the same.
import { tick } from 'svelte';

/** The path under which the console is served: what stands in front of its pages. */
export const base = import.meta.env.DEV ? '/' : new URL(/* @vite-ignore */ '..', import.meta.url).pathname;

export type PageName =
  | '' | 'queues' | 'queue' | 'messages' | 'compare' | 'dead-letters' | 'groups' | 'group' | 'streams' | 'traces' | 'tasks' | 'analytics' | 'system' | 'help';

export type Query = Record<string, string | number | boolean | null | undefined>;

class Address {
  page = $state<PageName>('');
  query = $state.raw(new URLSearchParams());

  constructor() {
    if (typeof window === 'undefined') return;
    this.read();
    window.addEventListener('popstate', () => this.read());
  }

  private read() {
    this.page = location.pathname.slice(base.length) as PageName;
    this.query = new URLSearchParams(location.search);
  }

  get(name: string): string {
    return this.query.get(name) ?? '';
  }

  /** Shows another page and puts the focus on its heading, where reading begins. */
  go(page: PageName, query: Query = {}) {
    history.pushState(null, '', href(page, query));
    this.read();
    window.scrollTo(0, 0);
    void tick().then(() => document.getElementById('heading')?.focus());
  }

  /** Changes parts of the query of this page; empty values go. Typing in a filter leaves no trail of pages behind. */
  set(changes: Query, trail = false) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value === '' || value === null || value === undefined || value === false) query.delete(name);
      else query.set(name, String(value));
    }
    const text = query.toString();
    if (text === this.query.toString()) return;
    const url = location.pathname + (text ? `?${text}` : '');
    if (trail) history.pushState(null, '', url);
    else history.replaceState(null, '', url);
    this.query = query;
  }
}

export const address = new Address();

/** The address of a page, for links. */
export function href(page: PageName, query: Query = {}): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== '' && value !== null && value !== undefined && value !== false) text.set(name, String(value));
  }
  return base + page + (text.size ? `?${text}` : '');
}

/** Follows links of the console without loading it again. */
export function follow(event: MouseEvent) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element | null)?.closest?.('a[href]');
  if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute('download') || link.origin !== location.origin) return;
  const page = link.pathname.slice(base.length);
  if (!link.pathname.startsWith(base) || page.includes('/') || page.includes('.')) return;
  event.preventDefault();
  address.go(page as PageName, Object.fromEntries(new URLSearchParams(link.search)));
}
