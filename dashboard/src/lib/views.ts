// Lists as somebody wants to see them again: a name for what stands in the address. The browser keeps them; the broker knows nothing of them.

export interface View {
  name: string;
  page: string;
  /** The query of the address, without what is only about a moment. */
  query: string;
}

/** Open dialogs and chosen rows are no part of a view. */
const momentary = ['push', 'create', 'at', 'message', 'live'];
const most = 100;

export function viewOf(name: string, page: string, query: URLSearchParams): View {
  const kept = new URLSearchParams([...query].filter(([key]) => !momentary.includes(key)));
  kept.sort();
  return { name: name.trim().slice(0, 100), page, query: kept.toString() };
}

/** The views with one more; one of the same name on the same page is replaced, and the oldest goes when there are too many. */
export function withView(views: readonly View[], view: View): View[] {
  return [...views.filter((one) => one.page !== view.page || one.name !== view.name), view].slice(-most);
}

export function without(views: readonly View[], view: View): View[] {
  return views.filter((one) => one.page !== view.page || one.name !== view.name);
}

/** What was kept, as far as it can be understood: others may have written there. */
export function parseViews(text: string): View[] {
  try {
    const all = JSON.parse(text) as unknown;
    if (!Array.isArray(all)) return [];
    return all.filter((one): one is View => typeof one?.name === 'string' && one.name !== '' && typeof one.page === 'string' && /^[a-z-]*$/.test(one.page) && typeof one.query === 'string')
      .map(({ name, page, query }) => ({ name, page, query })).slice(-most);
  } catch {
    return [];
  }
}
