// Text of clients stays text, in every field that has one. The broker of this part holds markup wherever a client can put a text.
import { readFileSync, readdirSync } from 'node:fs';
import { check, equal, open, settled, settings, truth, violations } from './console.mjs';
import { pages } from './pages.mjs';

const hostile = '<img src=x onerror=alert(1)><script>alert(2)</script>"\'`${alert(3)}\u202e';
const shown = '<img src=x onerror=alert(1)>';

// Pages that show nothing that a client wrote: figures, and what the program says of itself.
const withoutTexts = ['analytics', 'compare', 'system-retention', 'help'];

/** Everything that the console reads from the address, as its sources say. */
const parameters = (() => {
  const files = readdirSync(new URL('../src', import.meta.url), { recursive: true }).filter((file) => /\.(svelte|ts)$/.test(file));
  const all = files.flatMap((file) => [...readFileSync(new URL(`../src/${file}`, import.meta.url), 'utf8').matchAll(/(?:address\.get|\bget)\('([a-zA-Z]+)'\)|parameter="([a-zA-Z]+)"/g)].map((found) => found[1] ?? found[2]));
  return [...new Set(all)];
})();

export async function attacks(browser) {
  await check('the parameters of addresses were found in the sources', () => truth(['name', 'filter', 'payload', 'broker', 'shape', 'trace'].every((one) => parameters.includes(one)), parameters.join()));
  const console_ = await open(browser, { url: settings.attacked });
  const { page } = console_;
  const name = encodeURIComponent(hostile);
  const holds = async (texts = true) => {
    if (texts) await page.getByText(shown).locator('visible=true').first().waitFor();
    truth((await page.locator('img[src="x"]').count()) === 0, 'markup of a client became an element');
    truth((await page.locator('script').count()) === 1, 'a script of a client is in the page');
    truth(!(await page.locator('body').innerText()).includes('\u202e'), 'a character that turns the text around is not shown as what it is');
  };
  /** The address of a page about what is hostile here. */
  const hostilely = (address) => {
    const url = new URL(address, 'http://x');
    for (const one of ['name', 'queue', 'namespace', 'task']) if (url.searchParams.has(one)) url.searchParams.set(one, hostile);
    return url.pathname + url.search;
  };
  const texts = [...pages.map(([at, address]) => [at, hostilely(address)]), ['messages-push', `/messages?queue=${name}&push=1`], ['analytics-queue', `/analytics?queue=${name}`], ['queues-create', `/queues?create=1&namespace=${name}&task=${name}`]];
  for (const [at, address] of texts) {
    await check(`${at}: hostile text stays text, on a desk and on a phone`, async () => {
      await console_.go(address);
      await holds(!withoutTexts.includes(at));
      equal(await violations(page), [], 'violations, light');
      await page.setViewportSize({ width: 390, height: 844 });
      await page.emulateMedia({ colorScheme: 'dark' });
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      const dark = await violations(page);
      await page.emulateMedia({ colorScheme: 'light' });
      await page.setViewportSize({ width: 1440, height: 900 });
      truth(width <= 390, `the page is ${width} pixels wide`);
      equal(dark, [], 'violations, dark on a phone');
    });
    await check(`${at}: hostile text in the address stays text`, async () => {
      const url = new URL(address, 'http://x');
      for (const one of parameters) if (one !== 'tab' && !url.searchParams.has(one)) url.searchParams.set(one, hostile);
      await page.goto(settings.attacked + url.pathname + url.search);
      await page.locator('#heading').first().waitFor();
      await page.waitForFunction(() => !document.querySelector('[aria-busy="true"]'));
      await holds(false);
      truth((await page.locator('main section, main table, main [role=alert], dialog').count()) > 0, 'the page is empty');
      while ((await page.getByRole('dialog').count()) > 0) await page.keyboard.press('Escape');
    });
  }
  await check('hostile text stays text in two messages side by side', async () => {
    const { messages } = await (await fetch(`${settings.attacked}/api/v1/messages?queue=${name}`)).json();
    const [left, right] = messages.map((one) => encodeURIComponent(`${one.partitionId}/${one.transactionId}`));
    await console_.go(`/compare?left=${left}&right=${right}`);
    await page.getByText('The payloads are the same, byte for byte.').waitFor();
    await holds();
    equal(await violations(page), [], 'violations');
  });
  await check('hostile text stays text in an opened message, its tree, its lines and its events', async () => {
    await console_.go(`/messages?queue=${name}`);
    await page.getByRole('button', { name: shown }).last().click();
    await page.getByRole('dialog').getByText('Stored').waitFor();
    await settled(page);
    for (const view of ['Lines', 'Raw', 'Bytes', 'Tree']) {
      await page.getByRole('dialog').getByRole('button', { name: view, exact: true }).first().click();
      if (view !== 'Raw') await holds();
    }
  });
  await check('hostile text stays text in a dead letter and in what a redrive says about it', async () => {
    await console_.go('/dead-letters');
    await page.locator('td button.mono', { hasText: shown }).first().click();
    await page.getByRole('dialog').getByText('Message id').waitFor();
    await holds();
    await page.getByRole('button', { name: 'Bring it back…' }).click();
    await page.getByRole('dialog').getByText('queenctl dlq redrive').waitFor();
    await holds();
  });
  await check('hostile text stays text in what a move, a deletion and a purge say about it', async () => {
    await console_.go(`/group?name=${name}&queue=${name}`);
    for (const button of ['Seek…', 'Delete…']) {
      await page.getByRole('button', { name: button }).first().click();
      await page.getByRole('dialog').getByText('queenctl').first().waitFor();
      await holds();
      await page.keyboard.press('Escape');
    }
    await console_.go(`/queue?name=${name}&tab=danger`);
    for (const button of ['Purge all…', 'Delete the queue…']) {
      await page.getByRole('button', { name: button }).click();
      await page.getByRole('dialog').getByText('queenctl').first().waitFor();
      await holds();
      await page.keyboard.press('Escape');
    }
  });
  await check('hostile text stays text in what the broker refuses', async () => {
    await console_.go(`/queue?name=${encodeURIComponent(hostile + 'gone')}`);
    await page.getByText('There is no queue of this name').waitFor();
    await holds();
    await console_.go(`/messages?traceId=${name}`);
    await page.getByRole('alert').first().waitFor();
  });
  await check('hostile text stays text in the palette', async () => {
    await console_.go('/help');
    await page.keyboard.press('Control+k');
    await page.getByRole('combobox', { name: /^Page, queue/ }).fill('img');
    await page.getByRole('option', { name: shown }).first().waitFor();
    await holds();
  });
  await console_.close();
}
