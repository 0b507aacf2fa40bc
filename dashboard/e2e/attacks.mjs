// Text of clients stays text, in every field that has one. The broker of this part holds markup wherever a client can put a text.
import { check, open, settled, settings, truth } from './console.mjs';

const hostile = '<img src=x onerror=alert(1)><script>alert(2)</script>"\'`${alert(3)}\u202e';
const pipeline = '0199b0c4-7be2-4c04-a1d9-5e2c8f0b6731';
const shown = '<img src=x onerror=alert(1)>';

export async function attacks(browser) {
  const console_ = await open(browser, { url: settings.attacked });
  const { page } = console_;
  const name = encodeURIComponent(hostile);
  const holds = async () => {
    await page.getByText(shown).locator('visible=true').first().waitFor();
    truth((await page.locator('img[src="x"]').count()) === 0, 'markup of a client became an element');
    truth((await page.locator('script').count()) === 1, 'a script of a client is in the page');
    truth(!(await page.locator('body').innerText()).includes('\u202e'), 'a character that turns the text around is not shown as what it is');
  };
  for (const address of [
    '/', '/queues', `/queue?name=${name}`, `/queue?name=${name}&tab=partitions`, `/queue?name=${name}&tab=messages`, `/queue?name=${name}&tab=groups`, `/queue?name=${name}&tab=danger`,
    '/messages', `/messages?queue=${name}&push=1`, '/dead-letters', '/groups', `/group?name=${name}&queue=${name}`, '/streams', '/traces', `/traces?name=${name}`, `/traces?trace=${pipeline}`, '/system', '/tasks',
    `/queue?name=${name}&tab=config`, `/analytics?queue=${name}`, `/queues?create=1&namespace=${name}&task=${name}`,
  ]) {
    await check(`hostile text stays text on ${address.replaceAll(name, '…')}`, async () => {
      await console_.go(address);
      await holds();
    });
  }
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
