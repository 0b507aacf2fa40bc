import { expect, it } from 'vitest';
import { parseViews, viewOf, without, withView } from './views';

const view = (name: string, query = '', page = 'queues') => viewOf(name, page, new URLSearchParams(query));

it('a view is what stands in the address, without the dialog that is open', () => {
  expect(view(' busy ', 'sort=-pending&create=1&filter=shop')).toEqual({ name: 'busy', page: 'queues', query: 'filter=shop&sort=-pending' });
  expect(view('m', 'message=x&at=y&live=1&push=1&queue=q', 'messages').query).toBe('queue=q');
});

it('one of the same name and page is replaced, the oldest goes', () => {
  let views = withView(withView([], view('a', 'filter=1')), view('a', 'filter=2', 'groups'));
  views = withView(views, view('a', 'filter=3'));
  expect(views.map((one) => `${one.page}?${one.query}`)).toEqual(['groups?filter=2', 'queues?filter=3']);
  expect(without(views, view('a'))).toEqual([view('a', 'filter=2', 'groups')]);
  for (let n = 0; n < 150; n++) views = withView(views, view(`v${n}`));
  expect([views.length, views[0]!.name]).toEqual([100, 'v50']);
});

it('what cannot be understood is left out', () => {
  const good = view('<img src=x onerror=alert(1)>', 'filter=a');
  expect(parseViews(JSON.stringify([good]))).toEqual([good]);
  for (const text of ['', '{', 'null', '{}', '[1,null,"x",{"name":"a"},{"name":"a","page":"//evil","query":""},{"name":"","page":"queues","query":""},{"name":1,"page":"queues","query":""}]']) expect(parseViews(text)).toEqual([]);
});
