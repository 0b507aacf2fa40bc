// Messages as they come, from one stream of the broker that ends when nobody looks.
import { base } from './address.svelte';
import { APIError, withQuery, wordsOf } from './api';
import { Raw } from './json';
import { session } from './session.svelte';
import type { MessageRow } from './shapes';

const most = 500;

export class Tail {
  rows = $state.raw<MessageRow[]>([]);
  missed = $state(0);
  state = $state<'off' | 'connecting' | 'live' | 'paused'>('off');
  error = $state('');
  private abort: AbortController | undefined;

  /** Call it while a component is made; path null is no stream. */
  constructor(wanted: () => { queue: string; partition: string } | null) {
    let visible = $state(!document.hidden);
    $effect(() => {
      const look = () => (visible = !document.hidden);
      document.addEventListener('visibilitychange', look);
      return () => document.removeEventListener('visibilitychange', look);
    });
    $effect(() => {
      const scope = wanted();
      if (!scope) {
        this.state = 'off';
        return;
      }
      if (!visible) {
        this.state = 'paused';
        return;
      }
      const abort = new AbortController();
      this.abort = abort;
      void this.run(withQuery('/api/v1/messages/tail', scope), abort.signal);
      return () => abort.abort();
    });
  }

  clear() {
    this.rows = [];
    this.missed = 0;
  }

  private async run(path: string, signal: AbortSignal) {
    while (!signal.aborted) {
      this.state = 'connecting';
      try {
        await this.read(path, signal);
        this.error = '';
      } catch (fault) {
        if (signal.aborted) return;
        this.error = wordsOf(fault);
        if (fault instanceof APIError && fault.status >= 400 && fault.status < 500 && fault.status !== 429) {
          this.state = 'off';
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, this.error ? 5000 : 500));
    }
  }

  private async read(path: string, signal: AbortSignal) {
    const response = await fetch(base + path.slice(1), { headers: { ...session.headers(), Accept: 'text/event-stream' }, signal, cache: 'no-store' });
    if (!response.ok || !response.body) {
      const text = await response.text();
      let words = `The stream failed with status ${response.status}.`;
      try {
        words = (JSON.parse(text) as { error: string }).error;
      } catch {
        // not from the broker
      }
      throw new APIError(words, response.status, '');
    }
    this.state = 'live';
    this.error = '';
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const events = rest.split('\n\n');
      rest = events.pop()!;
      const fresh: MessageRow[] = [];
      for (const event of events) {
        const kind = /^event: (.*)$/m.exec(event)?.[1];
        const data = /^data: (.*)$/m.exec(event)?.[1];
        if (!kind || !data) continue;
        if (kind === 'message') {
          const message = JSON.parse(data) as MessageRow & { payloadText: string | null; payloadBytes: number };
          message.payload = new Raw(message.payloadText ?? `"(${message.payloadBytes} bytes, open the message to see them)"`);
          fresh.push(message);
        } else if (kind === 'missed') this.missed += (JSON.parse(data) as { atLeast: number }).atLeast;
      }
      if (fresh.length) this.rows = [...fresh.reverse(), ...this.rows].slice(0, most);
    }
  }
}
