// What a person prefers, kept by the browser. None of it is about the data.

import { parseViews, type View } from './views';

type Theme = 'system' | 'light' | 'dark';

function kept(name: string, fallback: string): string {
  try {
    return localStorage.getItem(`queen.${name}`) ?? fallback;
  } catch {
    return fallback; // storage may be forbidden
  }
}

function keep(name: string, value: string) {
  try {
    localStorage.setItem(`queen.${name}`, value);
  } catch {
    // then it lasts as long as the page
  }
}

class Preferences {
  theme = $state<Theme>(kept('theme', 'system') as Theme);
  /** The system prefers dark now; what is drawn in colours of the moment follows it. */
  systemDark = $state(false);
  utc = $state(kept('clock', 'utc') === 'utc');
  /** Seconds between two looks; 0 is never. */
  every = $state(Number(kept('every', '15')) || 0);

  /** Lists that somebody wants to see again. */
  views = $state.raw<View[]>(parseViews(kept('views', '[]')));

  constructor() {
    if (typeof matchMedia === 'undefined') return;
    const dark = matchMedia('(prefers-color-scheme: dark)');
    this.systemDark = dark.matches;
    dark.addEventListener('change', (event) => (this.systemDark = event.matches));
  }

  setTheme(theme: Theme) {
    this.theme = theme;
    keep('theme', theme);
    this.apply();
  }

  apply() {
    if (this.theme === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme;
  }

  setUTC(utc: boolean) {
    this.utc = utc;
    keep('clock', utc ? 'utc' : 'local');
  }

  setViews(views: View[]) {
    this.views = views;
    keep('views', JSON.stringify(views));
  }

  setEvery(seconds: number) {
    this.every = seconds;
    keep('every', String(seconds));
  }
}

export const preferences = new Preferences();
