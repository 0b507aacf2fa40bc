// Everything is reached and left with the keyboard, and where it is can be seen.
import { check, equal, open, settled, truth } from './console.mjs';
import { pages } from './pages.mjs';

export async function keys(browser) {
  const console_ = await open(browser);
  const { page } = console_;
  for (const [name, address] of pages) {
    await check(`${name}: the keyboard reaches everything`, async () => {
      await console_.go(address);
      const wanted = await page.evaluate(() => {
        const seen = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter((one) => !one.disabled && one.checkVisibility({ visibilityProperty: true }) && one.tabIndex >= 0);
        seen.forEach((one, i) => (one.dataset.reach = String(i)));
        return seen.length;
      });
      truth(wanted > 15, `only ${wanted} things to reach`);
      await page.evaluate(() => document.body.focus());
      // What is reached is noted in the page: a question after every key would take most of the time.
      await page.evaluate(() => {
        const reached = (globalThis.reached = new Map());
        document.addEventListener('focusin', ({ target }) => {
          const style = getComputedStyle(target);
          if (target.dataset.reach !== undefined) reached.set(target.dataset.reach, { what: target.outerHTML.slice(0, 80), ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 });
        });
      });
      // Dates and what scrolls have stops of their own.
      for (let i = 0; i < wanted * 2 + 40; i++) {
        await page.keyboard.press('Tab');
        if (i % 8 === 7 && (await page.evaluate(() => globalThis.reached.size)) >= wanted) break;
      }
      const reached = await page.evaluate(() => Object.fromEntries(globalThis.reached));
      const invisible = Object.values(reached).filter((one) => !one.ring).map((one) => one.what);
      // Tabs and radio buttons are one stop each, and rows may have come since.
      const missed = await page.evaluate((ids) => [...document.querySelectorAll('[data-reach]')].filter((one) => one.isConnected && !ids.includes(one.dataset.reach) && !one.matches('[type=radio]')).map((one) => one.outerHTML.slice(0, 80)), Object.keys(reached));
      equal(missed, [], 'not reached');
      equal(invisible, [], 'focus that cannot be seen');
    });
  }
  await check('a dialog keeps the focus, Escape closes it and gives the focus back', async () => {
    await console_.go('/groups');
    const opener = page.getByRole('button', { name: /^Seek…/ }).first();
    await opener.focus();
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor();
    for (let i = 0; i < 25; i++) {
      await page.keyboard.press('Tab');
      // Between the last and the first the browser's own controls may come, for which the document has no element.
      truth(await page.evaluate(() => document.activeElement === document.body || !!document.activeElement.closest('dialog')), 'the focus left the dialog');
    }
    await page.keyboard.press('Escape');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    truth(await opener.evaluate((one) => one === document.activeElement), 'the focus is somewhere else');
  });
  await check('a link moves the focus to the heading of the page that it leads to', async () => {
    await console_.go('/');
    await page.locator('nav').getByRole('link', { name: 'Queues' }).focus();
    await page.keyboard.press('Enter');
    await settled(page);
    equal(await page.evaluate(() => document.activeElement.id), 'heading');
  });
  await console_.close();
}
