// What a person does with the console, in a browser, against brokers that a Go test (test/dashboard) has started and filled.
import { check, end, launch, open, picture, truth, violations, equal, settings } from './console.mjs';

const pages = [
  ['overview', '/', 'Overview'],
  ['queues', '/queues', 'Queues'],
];

const browser = await launch();
try {
  for (const theme of ['light', 'dark']) {
    const console_ = await open(browser, { theme });
    for (const [name, path, title] of pages) {
      await check(`${name} in ${theme}: renders, no violation`, async () => {
        await console_.go(path);
        equal(await console_.page.locator('#heading').textContent(), title, 'heading');
        await picture(console_.page, theme === 'light' ? name : `${name}-dark`);
        const found = await violations(console_.page);
        truth(found.length === 0, found.join('\n'));
      });
    }
    await console_.close();
  }
  const attacked = await open(browser, { url: settings.attacked });
  for (const [name, path] of pages) {
    await check(`${name}: hostile text stays text`, async () => {
      await attacked.go(path);
      truth((await attacked.page.locator('img[src="x"], main script').count()) === 0, 'markup of a client became elements');
      await attacked.page.locator('main', { hasText: '<img src=x onerror=alert(1)>' }).waitFor();
    });
  }
  await attacked.close();
} finally {
  await browser.close();
}
end();
