// A broker that asks for tokens: sign-in, and what a role may not do is not offered.
import { check, equal, open, picture, settled, settings, truth, violations } from './console.mjs';

export async function signIn(browser) {
  const console_ = await open(browser, { url: settings.guarded });
  const { page } = console_;
  await check('a broker with tokens asks for one', async () => {
    await page.goto(`${settings.guarded}/queues`);
    await page.getByRole('heading', { name: 'Sign in to Queen' }).waitFor();
    await picture(page, 'sign-in');
    equal(await violations(page), [], 'violations');
    await page.getByLabel('Token').fill('not a token');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').waitFor();
  });
  await check('a reader looks and changes nothing', async () => {
    await page.getByLabel('Token').fill(settings.tokens.reader);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('rita').waitFor();
    await settled(page);
    equal(await page.locator('#heading').textContent(), 'Queues', 'the page that was asked for');
    for (const path of ['queues', 'messages', 'dead-letters', 'groups', 'system']) {
      // By links: a new address would load the page anew, and the token with it.
      await page.locator('nav a', { hasText: { queues: 'Queues', messages: 'Messages', 'dead-letters': 'Dead letters', groups: 'Consumer groups', system: 'System' }[path] }).click();
      await settled(page);
      equal(new URL(page.url()).pathname, `/${path}`);
      const writes = await page.locator('main button').filter({ hasText: /^(Create a|Push|Redrive|Delete|Seek|Purge|Switch|Put)/ }).count();
      equal(writes, 0, `writes offered on /${path}`);
    }
  });
  await check('the token is in no storage of the browser and goes with the page', async () => {
    const kept = await page.evaluate(() => JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage), document.cookie]));
    truth(!kept.includes(settings.tokens.reader.slice(0, 20)), `the token is kept: ${kept}`);
    equal((await console_.context.cookies()).length, 0, 'cookies');
    await page.reload();
    await page.getByRole('heading', { name: 'Sign in to Queen' }).waitFor();
  });
  await check('an administrator is offered everything, and signs out', async () => {
    await page.getByLabel('Token').fill(`Bearer ${settings.tokens.admin}`);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('adam').waitFor();
    await page.locator('nav a', { hasText: 'Queues' }).click();
    await page.getByRole('button', { name: 'Create a queue' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Name').fill('guarded');
    await dialog.getByRole('button', { name: 'Create', exact: true }).click();
    await page.waitForURL('**/queue?name=guarded*');
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByRole('heading', { name: 'Sign in to Queen' }).waitFor();
  });
  await console_.close();
  await check('a token that may not read is told so, and nothing is shown as zero', async () => {
    const other = await open(browser, { url: settings.guarded });
    await other.page.goto(`${settings.guarded}/queues`);
    await other.page.getByLabel('Token').fill(settings.tokens.writer);
    await other.page.getByRole('button', { name: 'Sign in' }).click();
    await other.page.getByText('Insufficient permissions').first().waitFor();
    await other.page.getByText('– of – queues').waitFor();
    equal(await violations(other.page), [], 'violations');
    await other.close();
  });
}
