// Keys. None of them works while somebody types or a dialog is open, except the one for the palette.
import { address, type PageName } from './address.svelte';
import { ticker } from './ticker.svelte';

export const goKeys: readonly (readonly [key: string, page: PageName, title: string])[] = [
  ['o', '', 'Overview'], ['q', 'queues', 'Queues'], ['m', 'messages', 'Messages'], ['d', 'dead-letters', 'Dead letters'], ['c', 'groups', 'Consumer groups'],
  ['e', 'streams', 'Streams'], ['t', 'traces', 'Traces'], ['k', 'tasks', 'Tasks'], ['a', 'analytics', 'Analytics'], ['s', 'system', 'System'], ['h', 'help', 'Help'],
];

class Shortcuts {
  palette = $state(false);
  private went = 0;

  press(event: KeyboardEvent) {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
      event.preventDefault();
      this.palette = !this.palette;
      return;
    }
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest('input, textarea, select, dialog, [contenteditable]')) return;
    const gone = Date.now() - this.went < 1500;
    this.went = 0;
    const page = goKeys.find(([key]) => key === event.key);
    if (gone && page) address.go(page[1]);
    else if (event.key === 'g') this.went = Date.now();
    else if (event.key === 'r') ticker.refresh();
    else if (event.key === '?') address.go('help');
    else if (event.key === '/') {
      const filter = document.querySelector<HTMLInputElement>('main input[type="search"]');
      if (!filter) return;
      event.preventDefault();
      filter.focus();
    }
  }
}

export const shortcuts = new Shortcuts();
