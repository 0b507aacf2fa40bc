// One clock for the whole page: everything that refreshes does so on its tick. It stands still while nobody looks.
import { untrack } from 'svelte';
import { APIError, call, type Call } from './api';
import { preferences } from './preferences.svelte';

class Ticker {
  /** Milliseconds since 1970, once a second. */
  now = $state(Date.now());
  /** Goes up with every refresh. */
  beat = $state(0);
  /** The last refresh was asked for, or follows a change: answers that others had are not good enough. */
  asked = false;
  hidden = $state(false);
  private last = Date.now();
  private timer: ReturnType<typeof setInterval> | undefined;

  start() {
    const visible = () => {
      this.hidden = document.hidden;
      clearInterval(this.timer);
      this.timer = undefined;
      if (document.hidden) return;
      this.timer = setInterval(() => this.step(), 1000);
      this.step();
    };
    document.addEventListener('visibilitychange', visible);
    visible();
  }

  private step() {
    this.now = Date.now();
    const every = preferences.every * 1000;
    // A little slack, or a timer that is a millisecond early would skip a second.
    if (every > 0 && this.now - this.last >= every - 100) this.turn(false);
  }

  /** Reads everything anew, past what is shared with other consoles. */
  refresh() {
    this.turn(true);
  }

  private turn(asked: boolean) {
    this.asked = asked;
    this.last = Date.now();
    this.now = this.last;
    this.beat++;
  }
}

export const ticker = new Ticker();

/** The part of an interval for which an answer may be shared with other consoles. */
export function sharing(beats = 1): number {
  return Math.min(60, Math.max(5, (preferences.every || 15) * beats - 1));
}

export interface PollOptions extends Pick<Call, 'keep' | 'drop'> {
  /** Refresh only with every n-th beat, for what is dear and changes slowly. */
  beats?: number;
  /** Keep showing the old value while another path is read: for paths that move along with the time. */
  steady?: boolean;
  /** Never share an answer with other consoles: it must be as of now. */
  fresh?: boolean;
  /** While it says so, read again only when somebody asks: for what is dear. */
  rests?: () => boolean;
}

/** Something that is read from the API again and again while it is shown. */
export class Poll<T> {
  value = $state.raw<T | undefined>();
  error = $state.raw<APIError | undefined>();
  loading = $state(true);
  /** The value is of another path, while the wanted one is being read. */
  stale = $state(false);
  /** When the value was true, in milliseconds since 1970. */
  at = $state(0);
  private path: string | null = null;
  private abort: AbortController | undefined;
  private beat = 0;

  /** Call it while a component is made. A path of null reads nothing. */
  constructor(
    private readonly wanted: () => string | null,
    private readonly options: PollOptions = {},
  ) {
    $effect(() => {
      const next = this.wanted();
      const beat = ticker.beat;
      untrack(() => {
        if (next !== this.path) {
          this.path = next;
          if (!this.options.steady || next === null) {
            this.value = undefined;
            this.at = 0;
          }
          this.stale = this.value !== undefined;
          this.error = undefined;
          void this.load();
        } else if (beat !== this.beat && (ticker.asked || (!this.options.rests?.() && (beat - this.beat >= (this.options.beats ?? 1) || this.error)))) {
          this.beat = beat;
          if (ticker.asked) void this.reload();
          else void this.load();
        }
      });
    });
    $effect(() => () => this.abort?.abort());
  }

  /** Reads again now, past all caches. */
  async reload() {
    this.abort?.abort();
    this.abort = undefined;
    await this.load(true);
  }

  private async load(now = false) {
    if (this.path === null) {
      this.abort?.abort();
      this.loading = false;
      return;
    }
    const path = this.path;
    if (this.abort && !now) {
      if (this.loadingPath === path) return; // the last look has not come back yet
      this.abort.abort();
    }
    const abort = new AbortController();
    this.abort = abort;
    this.loadingPath = path;
    this.loading = true;
    this.beat = ticker.beat;
    try {
      const { keep, drop, beats, fresh } = this.options;
      const answer = await call<T>(path, { keep, drop, signal: abort.signal, maxAge: now || fresh ? undefined : sharing(beats) });
      if (this.abort !== abort) return;
      this.value = answer.value;
      this.at = Date.now() - answer.age * 1000;
      this.error = undefined;
      this.stale = false;
    } catch (fault) {
      if (this.abort !== abort || abort.signal.aborted) return;
      this.error = fault instanceof APIError ? fault : new APIError(String(fault), 0, '');
      if (this.stale) this.value = undefined; // of something else than what was asked for
      this.stale = false;
    }
    if (this.abort === abort) {
      this.abort = undefined;
      this.loading = false;
    }
  }

  private loadingPath: string | null = null;
}
