// A broker with 5,000 queues and 100,000 partitions: lists are read page by page, in the order of the broker, and only what is seen is drawn.
import { check, equal, open, settings, truth } from './console.mjs';
import { until } from './journeys.mjs';

// Generous, because machines are busy; what a page must not do is read or draw everything.
const patience = 8000;

export async function crowd(browser) {
  const console_ = await open(browser, { url: settings.crowded });
  const { page } = console_;
  const rows = page.locator('tbody tr:not(.space)');
  /** Goes to a page, and holds it against the time, and the bytes, that it may take. */
  const opens = async (address, text, bytes = 200_000) => {
    let read = 0;
    const count = async (response) => {
      if (response.url().includes('/api/')) read += (await response.body().catch(() => '')).length;
    };
    page.on('response', count);
    const began = Date.now();
    await console_.go(address);
    await page.getByText(text).first().waitFor();
    const took = Date.now() - began;
    page.off('response', count);
    truth(took < patience, `${address} took ${took} ms`);
    truth(read < bytes, `${address} read ${read} bytes`);
  };
  const more = async () => {
    const before = await page.locator('.more').first().textContent();
    await page.getByRole('button', { name: 'Read more' }).first().click();
    await until('another page', async () => (await page.locator('.more').first().textContent()) !== before && (await page.getByText('Reading…').count()) === 0);
  };

  await check('5,000 queues are paged through in any order, and found', async () => {
    await opens('/queues', '5,000 of 5,000 queues');
    await page.getByText('100 of 5,000 shown').waitFor();
    await more();
    await more();
    await page.getByText('300 of 5,000 shown').waitFor();
    truth((await rows.count()) < 120, `${await rows.count()} rows are in the document`);
    await page.locator('.scroller').first().evaluate((box) => box.scrollTo(0, box.scrollHeight));
    await page.getByText('cell.queue-0299').waitFor();
    await page.getByRole('button', { name: 'Pending' }).click();
    await page.locator('tbody tr').first().getByText('cell.big').waitFor(); // the deepest of all, which is not among the first by name
    await page.getByRole('button', { name: 'Queue', exact: true }).click();
    await page.getByRole('button', { name: 'Queue', exact: true }).click();
    await page.locator('tbody tr').first().getByText('cell.queue-4999').waitFor();
    equal(new URL(page.url()).searchParams.get('sort'), '-name');
    await page.getByRole('searchbox', { name: 'Name contains' }).fill('QUEUE-0123');
    await page.getByText('1 of 5,000 queues').waitFor();
    equal(new URL(page.url()).searchParams.get('filter'), 'QUEUE-0123');
    await page.reload();
    await page.getByText('1 of 5,000 queues').waitFor();
  });

  await check('groups in 5,000 queues are paged through in any order, and found', async () => {
    await opens('/groups', '5,500 groups');
    await page.getByText('100 of 5,500 shown').waitFor();
    const names = async () => (await page.locator('tbody tr td:nth-child(2)').allTextContents()).map((text) => text.trim());
    const first = await names();
    await more();
    const ids = await page.evaluate(() => [...document.querySelectorAll('tbody tr td:first-child a')].map((link) => link.getAttribute('href')));
    equal(new Set(ids).size, ids.length, 'rows that are shown once');
    await page.getByRole('button', { name: 'Behind', exact: true }).click();
    await page.locator('tbody tr').first().getByRole('link', { name: 'cell.big' }).waitFor();
    equal((await page.locator('tbody tr').first().locator('td').nth(2).textContent()).trim(), '500', 'messages that many has before it in cell.big');
    await page.getByRole('button', { name: 'Queue', exact: true }).click();
    await until('the order', async () => (await names())[0] === 'cell.big' && (await names())[1].startsWith('cell.queue-0001'));
    truth((await names())[1] !== first[1], 'the order is the same');
    await page.getByRole('searchbox', { name: /contains/ }).fill('few');
    await page.getByText('500 groups').waitFor();
    await page.getByLabel('Show').selectOption('behind');
    await page.getByText('0 groups').waitFor();
    equal(new URL(page.url()).searchParams.get('only'), 'behind');
  });

  await check('a group with 100,000 partitions is paged through', async () => {
    await opens('/group?name=many', '100,000 partitions');
    await page.locator('.stat', { hasText: 'Behind' }).getByText('1,000', { exact: true }).waitFor();
    const oldest = await rows.first().textContent();
    truth(/5\d min|1 h/.test(oldest), `the oldest first: ${oldest}`);
    await more();
    truth((await rows.count()) < 120, `${await rows.count()} rows are in the document`);
    await page.getByRole('searchbox', { name: 'Partition contains' }).fill('lane-099900');
    await page.getByText('1 partition', { exact: true }).waitFor();
    await page.getByLabel('Show').selectOption('behind');
    await page.getByRole('link', { name: 'lane-099900' }).waitFor();
  });

  await check('a queue with 50,000 partitions is paged through', async () => {
    await opens('/queue?name=cell.big&tab=partitions', '500 partitions', 400_000);
    equal(await page.locator('.map .cell').count(), 500, 'cells of the heat map');
    truth((await rows.count()) < 120, `${await rows.count()} rows are in the document`);
    await page.getByRole('searchbox', { name: 'Name begins with' }).fill('lane-0123');
    await page.getByText('100 partitions').waitFor();
  });

  await check('the overview and the palette find their way in a crowd', async () => {
    await opens('/', /many is [\dhmins ]+ behind in cell\.big/, 250_000);
    await page.keyboard.press('Control+k');
    await page.getByRole('combobox', { name: /^Page, queue/ }).fill('queue-4998');
    await page.getByRole('option', { name: 'cell.queue-4998' }).waitFor();
    await page.keyboard.press('Escape');
  });
  await console_.close();
}
