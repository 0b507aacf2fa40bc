// Every page shows what the test put into the broker, to everybody, in both themes, on a desk and on a phone.
import { readFileSync } from 'node:fs';
import { check, equal, open, picture, settled, settings, truth, violations } from './console.mjs';

const pipeline = '0199b0c4-7be2-4c04-a1d9-5e2c8f0b6731';

/** [picture, address, heading, a text that only real data makes] */
export const pages = [
  ['overview', '/', 'Overview', 'is 2 h behind in shop.orders'],
  ['queues', '/queues', 'Queues', 'warehouse.picks'],
  ['queue-activity', '/queue?name=shop.orders', 'shop.orders', 'acknowledged'],
  ['queue-partitions', '/queue?name=shop.orders&tab=partitions', 'shop.orders', 'let its lease run out'],
  ['queue-messages', '/queue?name=shop.orders&tab=messages', 'shop.orders', '"currency": "EUR"'],
  ['queue-groups', '/queue?name=shop.orders&tab=groups', 'shop.orders', 'audit'],
  ['queue-config', '/queue?name=shop.payments&tab=config', 'shop.payments', 'dedupWindowSeconds'],
  ['queue-danger', '/queue?name=shop.payments&tab=danger', 'shop.payments', 'Delete the queue'],
  ['messages', '/messages', 'Messages', '"kind"'],
  ['compare', '/compare', 'Compare two messages', 'Choose two messages'],
  ['dead-letters', '/dead-letters', 'Dead letters', 'declined'],
  ['groups', '/groups', 'Consumer groups', 'robots'],
  ['group', '/group?name=search&queue=shop.orders', 'search', 'customer-05'],
  ['streams', '/streams', 'Streams', 'readings-per-minute'],
  ['traces', '/traces', 'Traces and pipelines', 'order-4711'],
  ['trace', `/traces?trace=${pipeline}`, 'Traces and pipelines', 'warehouse.picks'],
  ['trace-events', '/traces?name=order-4711', 'Traces and pipelines', 'handed over'],
  ['tasks', '/tasks', 'Tasks', 'No task was started yet'],
  ['analytics', '/analytics?hours=6', 'Analytics', 'against the 6 hours before'],
  ['system', '/system', 'System', 'this one'],
  ['system-database', '/system?tab=database', 'System', 'log_segments'],
  ['system-retention', '/system?tab=retention', 'System', 'Runs that deleted'],
  ['system-settings', '/system?tab=settings', 'System', 'QUEEN_SERVER_ID'],
  ['help', '/help', 'Help', 'command palette'],
];

export async function everyPage(browser) {
  const desk = await open(browser);
  await check('every page of the console, and every tab of a page, is in this table', async () => {
    const embedded = readFileSync(new URL('../embed.go', import.meta.url), 'utf8');
    const paths = [.../var Pages = \[\]string\{(.*?)\n\}/s.exec(embedded)[1].matchAll(/"([^"]+)"/g)].map((found) => found[1]);
    truth(paths.length > 10, 'the paths of the console were not found');
    equal(paths.filter((path) => !pages.some(([, address]) => address.split('?')[0] === path)), [], 'paths without a page in the table');
    const links = desk.page.locator('nav[aria-label="Pages"] a');
    await desk.go('/');
    equal((await links.evaluateAll((all) => all.map((one) => new URL(one.href).pathname))).filter((path) => !paths.includes(path)), [], 'pages of the menu without a path');
    for (const [path, address] of [['/queue', '/queue?name=shop.orders'], ['/system', '/system']]) {
      await desk.go(address);
      const tabs = await desk.page.locator('main nav button').count();
      const listed = new Set(pages.filter(([, one]) => one.split('?')[0] === path).map(([, one]) => new URL(one, 'http://x').searchParams.get('tab') ?? ''));
      equal(listed.size, tabs, `tabs of ${path}`);
    }
  });
  for (const [name, address, heading, text] of pages) {
    await check(`${name}: shows real data, both themes are accessible`, async () => {
      await desk.go(address);
      equal(await desk.page.locator('#heading').textContent(), heading, 'heading');
      await desk.page.locator('main').getByText(text).first().waitFor();
      await picture(desk.page, name);
      const light = await violations(desk.page);
      await desk.page.emulateMedia({ colorScheme: 'dark' });
      const dark = await violations(desk.page);
      if (['overview', 'queue-partitions', 'trace'].includes(name)) await picture(desk.page, `${name}-dark`);
      await desk.page.emulateMedia({ colorScheme: 'light' });
      truth(light.length + dark.length === 0, ['light', ...light, 'dark', ...dark].join('\n'));
    });
  }
  await desk.close();

  const phone = await open(browser, { width: 390, height: 844 });
  for (const [name, address] of pages) {
    await check(`${name}: fits a phone`, async () => {
      await phone.go(address);
      const width = await phone.page.evaluate(() => document.documentElement.scrollWidth);
      truth(width <= 390, `the page is ${width} pixels wide`);
      if (['overview', 'queues', 'trace'].includes(name)) await picture(phone.page, `${name}-phone`);
    });
  }
  await check('the menu of a phone opens and leads on', async () => {
    await phone.go('/');
    await phone.page.getByRole('button', { name: 'Menu' }).click();
    await phone.page.getByRole('link', { name: 'Dead letters', exact: true }).first().click();
    await settled(phone.page);
    equal(new URL(phone.page.url()).pathname, '/dead-letters');
    equal(await violations(phone.page), [], 'violations');
  });
  await phone.close();
}
