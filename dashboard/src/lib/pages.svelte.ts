// Lists that are read page by page. The first page is kept fresh; those behind it are read when somebody asks, by a cursor, so that
// nothing is shown twice or left out while rows come and go.
import { call, withQuery, wordsOf } from './api';
import { Poll, type PollOptions } from './ticker.svelte';

type Query = Record<string, string | number | boolean | null | undefined>;

export class Pages<Row, Answer extends { nextCursor?: string | null }> {
  readonly first: Poll<Answer>;
  private more = $state.raw<Row[]>([]);
  /** The answers behind the first one. */
  behind = $state.raw<Answer[]>([]);
  private cursor = $state<string | null | undefined>(undefined);
  reading = $state(false);
  /** When the oldest of the rows behind the first page was read, in milliseconds since 1970; 0 without one. */
  since = $state(0);
  error = $state('');
  private of = '';

  constructor(
    private readonly path: () => string | null,
    private readonly query: () => Query,
    private readonly rowsOf: (answer: Answer) => Row[],
    private readonly key: (row: Row) => string,
    private readonly options: PollOptions = {},
  ) {
    const whole = () => {
      const path = this.path();
      return path && withQuery(path, this.query());
    };
    this.first = new Poll<Answer>(whole, options);
    $effect(() => {
      const now = whole() ?? '';
      if (now === this.of) return;
      this.of = now;
      this.reset();
    });
  }

  reset() {
    this.more = [];
    this.behind = [];
    this.since = 0;
    this.cursor = undefined;
    this.error = '';
  }

  get rows(): Row[] {
    const top = this.first.value ? this.rowsOf(this.first.value) : [];
    if (!this.more.length) return top;
    const seen = new Set(top.map(this.key));
    return [...top, ...this.more.filter((row) => !seen.has(this.key(row)))];
  }

  get next(): string | null {
    return this.cursor === undefined ? (this.first.value?.nextCursor ?? null) : this.cursor;
  }

  async readMore() {
    const path = this.path();
    if (!path || !this.next || this.reading || this.first.stale) return;
    this.reading = true;
    this.error = '';
    const of = this.of;
    try {
      const { keep, drop } = this.options;
      // The rows that the first page pushes down while it refreshes stay here.
      const top = this.first.value ? this.rowsOf(this.first.value) : [];
      const { value } = await call<Answer>(withQuery(path, { ...this.query(), cursor: this.next }), { keep, drop });
      if (of !== this.of) return;
      const seen = new Set([...this.more, ...top].map(this.key));
      this.more = [...(this.more.length ? this.more : top), ...this.rowsOf(value).filter((row) => !seen.has(this.key(row)))];
      this.behind = [...this.behind, value];
      this.cursor = value.nextCursor ?? null;
      this.since ||= Date.now();
    } catch (fault) {
      this.error = wordsOf(fault);
    } finally {
      this.reading = false;
    }
  }
}
