// What people come for.
import { check, equal, open, picture, settled, settings, truth, violations } from './console.mjs';

export async function api(method, path, body) {
  const response = await fetch(settings.url + path, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  return JSON.parse(await response.text());
}

/** Asks again and again until an answer is as wanted. */
export async function until(what, ask) {
  for (let left = 400; left > 0; left--) {
    const got = await ask();
    if (got) return got;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${what} did not happen`);
}

export async function journeys(browser) {
  const console_ = await open(browser);
  const { page } = console_;
  const dialog = page.getByRole('dialog');

  await check('a message is pushed and its digits are exact', async () => {
    await console_.go('/messages?push=1&queue=warehouse.labels');
    const payload = '{ "big": 12345678901234567890, "price": 1.10, "a": 1, "a": 2, "text": "\\u00e9\\/" }';
    await dialog.getByLabel('Partition').fill('by hand');
    await dialog.getByLabel('Transaction id').fill('pushed-here');
    await dialog.getByLabel('Payload').fill('{ not json');
    truth(await dialog.getByRole('button', { name: 'Push', exact: true }).isDisabled(), 'what is no JSON can be pushed');
    await dialog.getByLabel('Payload').fill(payload);
    await dialog.getByText(`queenctl push warehouse.labels --partition 'by hand' --transaction-id pushed-here`).waitFor();
    await picture(page, 'push');
    equal(await violations(page), [], 'violations');
    await dialog.getByRole('button', { name: 'Push', exact: true }).click();
    await dialog.getByText('Stored as message').waitFor();
    await dialog.getByRole('button', { name: 'Close' }).last().click();
    const raw = await (await fetch(`${settings.url}/api/v1/messages?queue=warehouse.labels&transactionId=pushed-here`)).text();
    truth(raw.includes(payload), `the payload was stored as ${raw}`);

    await console_.go('/messages?queue=warehouse.labels&transactionId=pushed-here');
    await page.getByRole('button', { name: 'pushed-here' }).click();
    for (const text of ['12345678901234567890', '1.10', '"\\u00e9\\/"']) await dialog.getByText(text, { exact: true }).waitFor();
    equal(await dialog.getByText('"a": ', { exact: true }).count(), 2, 'members with the same key');
    await dialog.getByRole('button', { name: 'Raw' }).click();
    equal(await dialog.locator('.content pre').textContent(), payload, 'raw payload');
    await picture(page, 'message');
    equal(await violations(page), [], 'violations');
  });

  await check('a copy of a message is pushed', async () => {
    await dialog.getByRole('button', { name: 'Push a copy' }).click();
    await page.getByRole('dialog', { name: 'Push a copy' }).getByRole('button', { name: 'Push', exact: true }).click();
    await page.getByText('Stored as message').waitFor();
    await until('the copy', async () => (await api('GET', '/api/v1/messages?queue=warehouse.labels&partition=by%20hand')).messages.length === 2);
  });

  await check('messages are searched by their payload, step by step over all there are, and the filter is in the address', async () => {
    // The needle lies behind more messages than one step looks at.
    await api('POST', '/api/v1/push', { items: [{ queue: 'shop.haystack', transactionId: 'needle', payload: { order: { id: 'n-1' } } }] });
    for (let n = 0; n < 3; n++) await api('POST', '/api/v1/push', { items: Array.from({ length: 1500 }, (_, i) => ({ queue: 'shop.haystack', payload: { order: { id: `h-${n}-${i}` } } })) });
    await console_.go('/messages?queue=shop.haystack');
    const field = page.getByLabel('Payload', { exact: true });
    await field.fill('order.id = "n-1"');
    await field.press('Enter');
    // The machine may be slow: a step ends by its time, too.
    await page.getByText(/^0 found among \d[\d,]* messages, back to /).waitFor();
    await page.getByText('Nothing found so far').waitFor();
    await picture(page, 'search');
    equal(await violations(page), [], 'violations');
    let steps = 0;
    for (; (await page.getByRole('button', { name: 'needle' }).count()) === 0; steps++) {
      truth(steps < 20, 'the needle is not found');
      await page.getByRole('button', { name: 'Look further' }).click();
      await page.getByRole('button', { name: 'Reading…' }).waitFor({ state: 'hidden' });
      await until('a step', async () => (await page.getByText('Reading…').count()) === 0);
    }
    await page.getByText('1 found among 4,501 messages: all that fit the other filters').waitFor();
    equal(new URL(page.url()).searchParams.get('payload'), 'order.id = "n-1"', 'the filter in the address');
    // A search is not repeated on its own.
    let asked = 0;
    const listen = (request) => request.url().includes('/api/v1/messages?') && asked++;
    page.on('request', listen);
    await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
    page.off('request', listen);
    equal(asked, 0, 'searches that nobody asked for');
    await console_.go('/messages?queue=shop.orders&payload=order.id+%3D+%223-1%22');
    await until('the filter', async () => (await page.locator('tbody tr').count()) === 1);
    await field.fill('order[');
    await field.press('Enter');
    await page.getByRole('alert').getByText('cannot read the path').waitFor();
  });

  await check('a message shows what is known of the attempts of every group, and what is not', async () => {
    const rows = page.getByRole('table', { name: 'Attempts of each group' }).locator('tbody');
    const row = async (group) => (await rows.locator('tr', { has: page.getByRole('link', { name: group, exact: true }) }).first().innerText()).replace(/\s+/g, ' ').trim();
    const show = async (id) => {
      await console_.go('/messages?queue=shop.orders&partition=customer-15&from=1970-01-01T00:00');
      await page.getByRole('button', { name: id, exact: true }).click();
      await rows.locator('tr').first().waitFor();
      await settled(page);
    };
    await show('order-15-0');
    equal(await row('search'), 'search processing 7 times 0 times');
    await rows.getByText(/leased as [\w-]+, ends in/).waitFor();
    await picture(page, 'attempts');
    equal(await violations(page), [], 'violations');
    await show('order-15-1');
    equal(await row('search'), 'search processing at least once unknown', 'behind the head of its batch');
    await console_.go('/dead-letters?queue=shop.orders&group=billing');
    const id = (await page.locator('td button.mono').first().textContent()).trim();
    const { messages } = await api('GET', `/api/v1/dlq?queue=shop.orders&transactionId=${id}`);
    await console_.go(`/messages?at=${messages[0].partitionId}&message=${id}`);
    await rows.getByText('put aside:').waitFor();
    truth(/^billing dead letter unknown \d+ times?$/.test(await row('billing')), await row('billing'));
    await page.keyboard.press('Escape');
  });

  await check('messages are read page by page', async () => {
    await console_.go('/messages?queue=shop.orders');
    await page.getByText('100 shown, there are more').waitFor();
    await page.getByRole('button', { name: 'Read more' }).click();
    await page.getByText('200 shown').waitFor();
    const ids = await page.locator('tbody tr td button.mono').allTextContents();
    truth(ids.length > 0 && new Set(ids).size === ids.length, 'a message is shown twice');
  });

  await check('messages are seen as they come', async () => {
    await console_.go('/messages?queue=billing.ledger&live=1');
    await page.getByText('live', { exact: true }).waitFor();
    let n = 0;
    await until('a message in the tail', async () => {
      await api('POST', '/api/v1/push', { items: [{ queue: 'billing.ledger', transactionId: `live-${n++}`, payload: { n } }] });
      return (await page.getByRole('button', { name: /^live-/ }).count()) > 0;
    });
    await picture(page, 'live-tail');
    await page.getByRole('button', { name: 'Stop the tail' }).click();
    await settled(page);
  });

  await check('a group is moved, with a preview of what is read again', async () => {
    await console_.go('/group?name=printing&queue=shop.invoices');
    await page.getByRole('button', { name: 'Seek…' }).first().click();
    await dialog.getByText('To the oldest message').click();
    const again = dialog.locator('div', { has: page.getByText('will be read again', { exact: true }) }).locator('dd').first();
    await until('the preview', async () => (await again.textContent()) === '48');
    await dialog.getByText('queenctl group seek printing shop.invoices --to 1970-01-01T00:00:00Z --yes').waitFor();
    await picture(page, 'seek');
    equal(await violations(page), [], 'violations');
    equal((await api('GET', '/api/v1/resources/queues/shop.invoices/depth?group=printing')).depth, 0, 'depth before');
    await dialog.getByRole('button', { name: 'Move the group' }).click();
    await dialog.waitFor({ state: 'hidden' });
    equal((await api('GET', '/api/v1/resources/queues/shop.invoices/depth?group=printing')).depth, 48, 'depth afterwards');
  });

  await check('options are changed after a look at the difference', async () => {
    await console_.go('/queue?name=shop.payments&tab=config');
    await page.getByRole('spinbutton', { name: 'leaseTime' }).fill('45');
    await page.getByRole('checkbox', { name: 'retentionEnabled' }).check();
    // Somebody else changes another option meanwhile: it is said, and not overwritten.
    await api('POST', '/api/v1/configure', { queue: 'shop.payments', options: { retryLimit: 7 } });
    await page.getByRole('button', { name: 'Review 2 changes' }).click();
    await dialog.getByText('queenctl queue set shop.payments --lease-time 45 --retention-enabled=true').waitFor();
    await dialog.getByText('Somebody changed retryLimit from 0 to 7').waitFor();
    equal(await dialog.locator('del').allTextContents(), ['30', 'off'], 'before');
    equal(await dialog.locator('ins').allTextContents(), ['45', 'on'], 'after');
    await picture(page, 'config-diff');
    equal(await violations(page), [], 'violations');
    await dialog.getByRole('button', { name: 'Save' }).click();
    await dialog.waitFor({ state: 'hidden' });
    const { options } = await api('GET', '/api/v1/resources/queues/shop.payments/options');
    equal([options.leaseTime, options.retentionEnabled, options.retryLimit, options.maxSize], [45, true, 7, 128], 'options');
  });

  await check('dead letters of one kind are redriven, with progress', async () => {
    await console_.go('/dead-letters');
    const before = (await api('GET', '/api/v1/dlq/count')).count;
    await page.getByRole('button', { name: /card \d+ declined/ }).first().click();
    await settled(page);
    truth(new URL(page.url()).searchParams.get('shape'), 'the error is not in the address');
    const chosen = await until('a count', async () => Number((await page.getByRole('button', { name: /^Redrive all \d/ }).textContent().catch(() => ''))?.match(/\d+/)?.[0]));
    truth(chosen > 0 && chosen < before, `${chosen} of ${before} fit`);
    await page.getByRole('button', { name: /^Redrive all/ }).click();
    await dialog.getByRole('button', { name: `Move ${chosen} back` }).waitFor();
    await dialog.getByText('queenctl dlq redrive --shape').waitFor();
    await picture(page, 'redrive');
    equal(await violations(page), [], 'violations');
    await dialog.getByRole('button', { name: `Move ${chosen} back` }).click();
    await page.locator('.figures').getByText(`${chosen} of ${chosen}`).waitFor();
    await page.getByText(`${chosen} moved`).waitFor();
    equal((await api('GET', '/api/v1/dlq/count')).count, before - chosen, 'dead letters that stay');
  });

  await check('a slow task is seen among the tasks and cancelled', async () => {
    await console_.go('/dead-letters');
    await page.getByRole('button', { name: /^Redrive all \d/ }).click();
    await dialog.getByLabel('At most so many a second').fill('1');
    await dialog.getByRole('button', { name: /^Move \d+ back/ }).click();
    await dialog.waitFor({ state: 'hidden' });
    await console_.go('/tasks');
    await picture(page, 'tasks');
    await page.getByRole('button', { name: 'Cancel' }).first().click();
    await dialog.getByText('queenctl task cancel').waitFor();
    await dialog.getByRole('button', { name: 'Cancel it' }).click();
    await dialog.waitFor({ state: 'hidden' });
    await until('the end of the task', async () => (await api('GET', '/api/v1/dlq/tasks')).tasks.every((task) => task.finishedAt));
    equal(await violations(page), [], 'violations');
    // The broker applies the filters, over all pages.
    await page.getByLabel('State').selectOption('cancelled');
    await until('the filter', async () => (await page.locator('.task').count()) === 1);
    equal(new URL(page.url()).searchParams.get('state'), 'cancelled');
    await page.getByLabel('Kind').selectOption('purge');
    await page.getByText('No task fits.').waitFor();
  });

  await check('one dead letter is brought back', async () => {
    await console_.go('/dead-letters');
    const before = (await api('GET', '/api/v1/dlq/count')).count;
    await page.locator('td button.mono').first().click();
    await picture(page, 'dead-letter');
    await page.getByRole('button', { name: 'Bring it back…' }).click();
    await dialog.getByRole('button', { name: 'Bring it back' }).click();
    await dialog.waitFor({ state: 'hidden' });
    equal((await api('GET', '/api/v1/dlq/count')).count, before - 1);
  });

  await check('a purge shows how much is deleted and wants the number typed', async () => {
    const before = (await api('GET', '/api/v1/dlq/count')).count;
    await console_.go('/dead-letters');
    await page.getByRole('button', { name: /^Delete all \d/ }).click();
    const button = dialog.getByRole('button', { name: `Delete ${before}` });
    await button.waitFor();
    truth(await button.isDisabled(), 'a purge needs no confirmation');
    await dialog.getByLabel(/to confirm/).fill(String(before));
    await button.click();
    await until('the purge', async () => (await api('GET', '/api/v1/dlq/count')).count === 0);
  });

  await check('a group with live leases is deleted only after a warning and its name', async () => {
    await console_.go('/group?name=search&queue=shop.orders');
    await page.getByRole('button', { name: 'Delete…' }).click();
    await dialog.getByText('leases are live').waitFor();
    const button = dialog.getByRole('button', { name: 'Delete', exact: true });
    truth(await button.isDisabled(), 'it can be deleted at once');
    await dialog.getByLabel(/to confirm/).fill('search');
    await button.click();
    await page.waitForURL('**/groups');
    truth(!(await api('GET', '/api/v1/consumer-groups')).some((group) => group.name === 'search'), 'the group is still there');
  });

  await check('a queue is created, purged and deleted', async () => {
    await console_.go('/queues?create=1');
    await dialog.getByLabel('Name').fill('made/by hand?');
    await dialog.getByRole('button', { name: 'Create', exact: true }).click();
    await page.waitForURL('**/queue?name=made*');
    await settled(page);
    equal(await page.locator('#heading').textContent(), 'made/by hand?');
    await api('POST', '/api/v1/push', { items: [{ queue: 'made/by hand?', payload: 1 }, { queue: 'made/by hand?', payload: 2 }] });
    await console_.go(`/queue?name=${encodeURIComponent('made/by hand?')}&tab=danger`);
    await page.getByRole('button', { name: 'Purge all…' }).click();
    await dialog.getByText('2 of them nobody has read.').waitFor();
    await dialog.getByLabel(/to confirm/).fill('made/by hand?');
    await dialog.getByRole('button', { name: 'Delete 2 messages' }).click();
    await dialog.getByText('Deleted 2 messages.').waitFor();
    await dialog.getByRole('button', { name: 'Close' }).last().click();
    await page.getByRole('button', { name: 'Delete the queue…' }).click();
    await dialog.getByLabel(/to confirm/).fill('made/by hand?');
    await dialog.getByRole('button', { name: 'Delete the queue' }).click();
    await page.waitForURL('**/queues');
  });

  await check('a maintenance switch is turned and comes up as needing attention', async () => {
    await console_.go('/system');
    await page.getByRole('button', { name: 'Switch off…' }).click();
    await dialog.getByLabel(/to confirm/).fill('pop');
    await dialog.getByRole('button', { name: 'Do it' }).click();
    await dialog.waitFor({ state: 'hidden' });
    await console_.go('/');
    await page.getByText('Pops are switched off').waitFor();
    await page.getByRole('link', { name: 'Switch pops on →' }).click();
    await page.getByRole('button', { name: 'Switch on…' }).click();
    await dialog.getByRole('button', { name: 'Switch on' }).click();
    await dialog.waitFor({ state: 'hidden' });
    equal((await api('GET', '/api/v1/system/maintenance')).popMaintenanceMode, false);
  });

  await check('the console is used with the keyboard alone', async () => {
    await console_.go('/');
    await page.keyboard.press('g');
    await page.keyboard.press('q');
    await settled(page);
    equal(await page.locator('#heading').textContent(), 'Queues');
    await page.keyboard.press('/');
    await page.keyboard.type('mail');
    await until('the filter', async () => (await page.locator('tbody tr').count()) === 1);
    truth(new URL(page.url()).searchParams.get('filter') === 'mail', 'the filter is not in the address');
    await page.keyboard.press('Control+k');
    await page.getByRole('combobox', { name: /^Page, queue/ }).waitFor();
    await picture(page, 'palette');
    equal(await violations(page), [], 'violations');
    await page.keyboard.type('warehouse.p');
    await page.getByRole('option', { name: 'warehouse.picks' }).waitFor();
    await page.keyboard.press('Enter');
    await page.waitForURL('**/queue?name=warehouse.picks');
    await page.goBack();
    await settled(page);
    equal(await page.getByRole('searchbox', { name: 'Name contains' }).inputValue(), 'mail', 'the filter after going back');
  });

  await check('charts follow the theme', async () => {
    await console_.go('/analytics');
    const image = () => page.locator('canvas').first().evaluate((canvas) => canvas.toDataURL());
    await page.locator('canvas').first().waitFor();
    const light = await image();
    await page.emulateMedia({ colorScheme: 'dark' });
    await until('another drawing', async () => (await page.locator('canvas').count()) > 0 && (await image()) !== light);
    await page.emulateMedia({ colorScheme: 'light' });
  });

  await check('a refresh that is asked for looks past what is shared', async () => {
    await console_.go('/queue?name=billing.ledger');
    const headers = [];
    const listen = (request) => request.url().includes('/api/v1/dlq/count') && headers.push(request.headers()['cache-control'] ?? '');
    page.on('request', listen);
    await page.keyboard.press('r');
    await until('a question', async () => headers.length > 0);
    equal(headers[0].includes('max-age'), false, 'an older answer was good enough');
    page.off('request', listen);
  });

  await check('streams show how far they are, and what is not known', async () => {
    await console_.go('/streams');
    const known = page.locator('tbody tr', { hasText: 'readings-per-minute' });
    await known.getByText(/^(1[5-9]|2\d) min( \d+ s)? behind$/).waitFor();
    await known.getByText(/the newest \d+ (min|s)/).waitFor();
    equal((await known.locator('td').nth(4).textContent()).trim(), '2', 'late records');
    const unknown = page.locator('tbody tr', { hasText: 'orders-per-minute' });
    for (const column of [3, 4]) equal((await unknown.locator('td').nth(column).innerText()).trim().replace(/\s+/g, ' '), '– unknown');
    await page.getByRole('searchbox', { name: 'Query or queue contains' }).fill('READINGS');
    await until('the filter', async () => (await page.locator('tbody tr').count()) === 1);
    equal(new URL(page.url()).searchParams.get('filter'), 'READINGS');
  });

  await check('trace names are found', async () => {
    await console_.go('/traces');
    await page.getByRole('searchbox', { name: 'Name contains' }).fill('4711');
    await page.getByText('1 name', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'order-4711' }).click();
    await page.getByText('3 shown').waitFor();
  });

  await check('a sorted table keeps its order in the address', async () => {
    await console_.go('/queues');
    await page.getByRole('button', { name: 'Pending' }).click();
    equal(new URL(page.url()).searchParams.get('sort'), '-pending');
    equal(await page.locator('th[aria-sort]').getAttribute('aria-sort'), 'descending');
    await until('the order', async () => {
      const figures = (await page.locator('tbody tr td:nth-child(2)').allTextContents()).map((text) => Number(text.replaceAll(',', '')));
      return figures.length > 5 && figures[0] >= 100 && figures.every((n, i) => i === 0 || n <= figures[i - 1]);
    });
  });

  await check('what is not known is not shown as zero', async () => {
    await page.route('**/api/v1/resources/overview', (route) => route.fulfill({ status: 503, contentType: 'application/json', body: '{"error":"the database is unavailable","code":"database_unavailable"}' }));
    await console_.go('/');
    const backlog = page.locator('.stat', { hasText: 'Backlog' });
    equal((await backlog.locator('.value').innerText()).trim().replace(/\s+/g, ' '), '– unknown');
    await page.unroute('**/api/v1/resources/overview');
  });
  await console_.close();

  await check('a page that nobody sees asks for nothing', async () => {
    const other = await open(browser);
    await other.page.clock.install();
    await other.go('/');
    let asked = 0;
    other.page.on('request', () => asked++);
    await other.page.clock.runFor(16_000);
    await until('a refresh', async () => asked > 0);
    await settled(other.page);
    await other.page.evaluate(() => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => true });
      document.dispatchEvent(new Event('visibilitychange'));
    });
    await other.page.waitForLoadState('networkidle');
    asked = 0;
    await other.page.clock.runFor(120_000);
    equal(asked, 0, 'requests of a hidden page in two minutes');
    await other.page.evaluate(() => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => false });
      document.dispatchEvent(new Event('visibilitychange'));
    });
    await until('a refresh when it is seen again', async () => asked > 0);
    await other.close();
  });
}
