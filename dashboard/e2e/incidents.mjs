// What somebody needs at night: what is different about this message, when will the group have caught up, was it like this last week.
import { readFileSync } from 'node:fs';
import { check, equal, open, picture, settled, settings, truth, violations } from './console.mjs';
import { api, until } from './journeys.mjs';

export async function incidents(browser) {
  const console_ = await open(browser);
  const { page } = console_;
  const dialog = page.getByRole('dialog');
  const payload = '{ "big": 12345678901234567890, "price": 1.10, "lines": ["tea", "milk"] }';
  const edited = '{ "big": 12345678901234567891, "price": 1.1, "lines": ["tea", "sugar", "milk"] }';
  await api('POST', '/api/v1/push', { items: [{ queue: 'shop.night', transactionId: 'night-0', payload: 0 }] });
  await fetch(`${settings.url}/api/v1/push`, { method: 'POST', body: `{"items":[{"queue":"shop.night","transactionId":"night-1","payload":${payload}}]}` });

  await check('a message shows its size and hash, and is edited and pushed after a look at the difference', async () => {
    await console_.go('/messages?queue=shop.night&transactionId=night-1');
    await page.getByRole('button', { name: 'night-1' }).click();
    const hash = Buffer.from(await crypto.subtle.digest('SHA-256', Buffer.from(payload))).toString('hex');
    await dialog.getByText(hash).waitFor();
    await dialog.getByText(`${payload.length} B`).waitFor();
    await dialog.getByRole('button', { name: 'Edit and push…' }).click();
    const form = page.getByRole('dialog', { name: 'Edit and push' });
    await form.getByText('The payloads are the same, byte for byte.').waitFor();
    await form.getByLabel('Transaction id').fill('night-2');
    await form.getByRole('textbox', { name: /^Payload/ }).fill(edited);
    await form.getByText('3 differences').waitFor();
    await picture(page, 'edit-and-push');
    equal(await violations(page), [], 'violations');
    await form.getByRole('button', { name: 'Push', exact: true }).click();
    await form.getByText('Stored as message').waitFor();
    const raw = await (await fetch(`${settings.url}/api/v1/messages?queue=shop.night&transactionId=night-2`)).text();
    truth(raw.includes(edited), `stored as ${raw}`);
  });

  await check('two messages are compared, digit for digit, from the drawer of one', async () => {
    await console_.go('/messages?queue=shop.night&transactionId=night-1');
    await page.getByRole('button', { name: 'night-1' }).click();
    await dialog.getByRole('button', { name: 'Compare…' }).click();
    await settled(page);
    const right = page.getByRole('region', { name: 'Right' });
    await right.getByRole('button', { name: 'the message after' }).click();
    await page.getByRole('heading', { name: 'Payloads' }).waitFor();
    const table = page.getByRole('table', { name: 'Differences of the payloads' });
    await table.waitFor();
    const rows = await table.locator('tbody tr').evaluateAll((all) => all.map((row) => [row.dataset.kind, ...[...row.cells].map((cell) => cell.innerText.replace(/\s+/g, ' '))]));
    equal(rows, [
      ['changed', 'big changed', '12345678901234567890', '12345678901234567891'],
      ['spelled', 'price same value, written differently', '1.10', '1.1'],
      ['added', 'lines[1] added', 'not there', '"sugar"'],
    ]);
    await picture(page, 'compare', { fullPage: true });
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      equal(await violations(page), [], `violations, ${colorScheme}`);
    }
    await page.emulateMedia({ colorScheme: 'light' });
    await page.setViewportSize({ width: 390, height: 844 });
    truth((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, 'it does not fit a phone');
    await page.setViewportSize({ width: 1440, height: 900 });
    await page.getByRole('button', { name: 'Exchange the sides' }).click();
    await table.locator('tr[data-kind="removed"]').waitFor();
    // The address is all there is: a link shows the same. Another one is found by its transaction id alone.
    await page.reload();
    await table.locator('tr[data-kind="removed"]').waitFor();
    await page.getByRole('button', { name: 'Choose another for the right side' }).click();
    await page.getByLabel('Right message').fill('night-2');
    await page.getByLabel('Right message').press('Enter');
    await page.getByText('The payloads are the same, byte for byte.').waitFor();
  });

  await check('a group says when it will have caught up, once it was seen twice', async () => {
    await api('POST', '/api/v1/push', { items: Array.from({ length: 40 }, (_, n) => ({ queue: 'shop.drain', transactionId: `drain-${n}`, payload: n })) });
    const pop = (batch) => api('GET', `/api/v1/pop/queue/shop.drain?consumerGroup=slow&batch=${batch}&autoAck=true`);
    await pop(1);
    const other = await open(browser);
    await other.page.clock.install();
    const stat = other.page.locator('.stat', { hasText: 'Caught up in' });
    const value = (text) => stat.locator('.value', { hasText: text });
    await other.go('/group?name=slow&queue=shop.drain');
    await stat.getByText('known after two looks').waitFor();
    const look = async () => {
      await other.page.clock.fastForward(30_000);
      await other.page.keyboard.press('r');
    };
    await look();
    await value('no progress').waitFor();
    await pop(19);
    await look();
    // 39 were before it, 20 are: the clock of the page has gone on a minute, and as long as the machine took.
    await stat.getByText(/^at 0\.\d+\/s, as this page saw it over the last \d+ min/).waitFor();
    truth(/^\d+ min/.test(await stat.locator('.value').innerText()), await stat.locator('.value').innerText());
    await api('POST', '/api/v1/push', { items: Array.from({ length: 90 }, (_, n) => ({ queue: 'shop.drain', transactionId: `more-${n}`, payload: n })) });
    await look();
    await value('growing').waitFor();
    await pop(200);
    await look();
    await value('caught up').waitFor();
    await other.close();
  });

  await check('a group shows who was seen at work, as far as that is known', async () => {
    await api('POST', '/api/v1/push', { items: [1, 2, 3].map((n) => ({ queue: 'shop.drain', partition: `lane-${n}`, payload: n })) });
    const popped = await api('GET', '/api/v1/pop/queue/shop.drain?consumerGroup=slow&batch=10&partitions=3');
    await console_.go('/group?name=slow&queue=shop.drain');
    // Past the answers that the pages before had.
    await page.getByRole('button', { name: 'Refresh', exact: true }).click();
    const row = page.getByRole('table', { name: 'Members seen' }).locator('tbody tr').first();
    await row.waitFor();
    const cells = await row.locator('td').allInnerTexts();
    equal([cells[0], cells[1]], [popped.messages[0].leaseId.slice(0, 13), 'unknown']);
    await picture(page, 'members');
    equal(await violations(page), [], 'violations');
  });

  await check('a group is cloned at the position of another one, with a preview', async () => {
    await api('POST', '/api/v1/consumer-groups/slow/queues/shop.drain/seek', { offset: 1 });
    const depth = async (group) => (await api('GET', `/api/v1/resources/queues/shop.drain/depth?group=${group}`)).depth;
    const left = await depth('slow');
    await console_.go('/group?name=slow&queue=shop.drain');
    await page.getByRole('button', { name: 'Clone…' }).click();
    await dialog.getByLabel('Name of the other group').fill('twin');
    await dialog.locator('div', { has: page.getByText('before it afterwards', { exact: true }) }).locator('dd', { hasText: new RegExp(`^${left}$`) }).first().waitFor();
    await dialog.getByText('queenctl group clone slow twin --queue shop.drain --yes').waitFor();
    await picture(page, 'clone');
    equal(await violations(page), [], 'violations');
    await dialog.getByRole('button', { name: 'Put it there' }).click();
    await page.waitForURL('**/group?name=twin&queue=shop.drain');
    equal([await depth('twin'), await depth('slow')], [left, left], 'depths');
  });

  await check('a queue with a delay shows what is not yet due', async () => {
    await api('POST', '/api/v1/configure', { queue: 'shop.later', options: { delayedProcessing: 7200 } });
    await api('POST', '/api/v1/push', { items: [1, 2, 3].map((n) => ({ queue: 'shop.later', transactionId: `later-${n}`, payload: n })) });
    await console_.go('/queue?name=shop.later');
    const panel = page.getByRole('region', { name: 'Upcoming messages' });
    await panel.getByText(/^3 messages not yet due; the first in 1 h 5\d min/).waitFor();
    equal(await panel.getByRole('button').allTextContents(), ['later-1', 'later-2', 'later-3']);
    await picture(page, 'upcoming');
    equal(await violations(page), [], 'violations');
    await console_.go('/queue?name=shop.night');
    equal(await panel.count(), 0, 'a queue without a delay');
  });

  await check('figures are compared with those of a week before, and saved', async () => {
    await console_.go('/analytics?hours=6');
    await page.getByLabel('Compare with').selectOption('week');
    await page.getByText('against the same 6 hours a week before').first().waitFor();
    equal(new URL(page.url()).searchParams.get('compare'), 'week');
    const from = [];
    const listen = (request) => request.url().includes('worker-metrics') && from.push(Date.parse(new URL(request.url()).searchParams.get('from')));
    page.on('request', listen);
    await page.reload();
    await until('both questions', async () => from.length >= 2);
    page.off('request', listen);
    equal(Math.abs(from[0] - from[1]), 7 * 24 * 3_600_000, 'between the two beginnings');
    await settled(page);
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save as CSV' }).click();
    const lines = readFileSync(await (await download).path(), 'utf8').split('\r\n');
    equal(lines[0], 'time,pushed,popped,acknowledged,failed,average wait ms,longest wait ms,dead letters');
    truth(lines.length > 20 && /^20\d\d-/.test(lines[1]), lines[1]);
  });

  await check('dead letters show how many came in the last day', async () => {
    await console_.go('/dead-letters');
    await page.getByRole('region', { name: 'New dead letters' }).getByText(/^[1-9]\d* messages in the last day, all queues and errors/).waitFor();
  });

  await check('a list is kept as a view, comes back, and is forgotten', async () => {
    await console_.go('/queues?filter=shop&sort=-pending');
    await page.getByRole('button', { name: 'Views', exact: true }).click();
    await dialog.getByLabel('Keep what is shown now as').fill('busy <b>shop</b>');
    await page.keyboard.press('Enter');
    await dialog.getByRole('button', { name: 'busy <b>shop</b>', exact: true }).waitFor();
    await picture(page, 'views');
    equal(await violations(page), [], 'violations');
    await page.keyboard.press('Escape');
    await console_.go('/queues');
    await page.keyboard.press('Control+k');
    await page.keyboard.type('busy');
    await page.getByRole('option', { name: /busy <b>shop/ }).click();
    await page.waitForURL('**/queues?filter=shop&sort=-pending');
    await page.getByRole('button', { name: 'Views (1)' }).click();
    await dialog.getByRole('button', { name: 'Forget busy <b>shop</b>' }).click();
    await dialog.getByText('None is kept yet.').waitFor();
    await page.keyboard.press('Escape');
    equal(await page.evaluate(() => localStorage.getItem('queen.views')), '[]');
  });

  await check('the palette finds a transaction id in all that is stored, when it is asked to', async () => {
    await console_.go('/');
    await page.keyboard.press('Control+k');
    await page.keyboard.type('night-1');
    await page.getByRole('option', { name: 'transaction id “night-1” in the last hour' }).waitFor();
    await page.getByRole('option', { name: 'transaction id “night-1” in all that is stored' }).click();
    await page.getByRole('button', { name: 'night-1' }).waitFor();
    equal(new URL(page.url()).searchParams.get('from'), '1970-01-01T00:00');
  });
  await console_.close();
}
