// A browser with a console in it, and what every page is held against: no dialog, no policy report, no error, no axe violation.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const require = createRequire(import.meta.url);
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

export const settings = JSON.parse(process.env.QUEEN_E2E);

const executables = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? executables.find((path) => {
    try {
      readFileSync(path);
      return true;
    } catch {
      return false;
    }
  });
  if (!executablePath) throw new Error('no chromium: install it (tools/setup.sh test), or say in CHROMIUM where it is');
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage', '--font-render-hinting=none'] });
}

/** Everything that no page may do, as it happens. */
const faults = [];

export function takeFaults() {
  return faults.splice(0);
}

/** Opens a page of its own in a context of its own and watches it. */
export async function open(browser, { width = 1440, height = 900, theme = 'light', url = settings.url } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, deviceScaleFactor: 1, timezoneId: 'Europe/Berlin', locale: 'en-GB', bypassCSP: false });
  await context.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
  });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on('dialog', (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on('pageerror', (error) => faults.push(`an error in the page: ${error.stack ?? error}`));
  page.on('console', (message) => {
    // Refusals of the API are answers that the page shows; everything else that is printed as an error is one.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) faults.push(`printed: ${message.text()}`);
  });
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin && !request.url().startsWith('data:')) faults.push(`a request to ${request.url()}`);
  });
  return {
    page,
    context,
    /** Goes to a page of the console and waits until it shows what it read. */
    async go(path) {
      await page.goto(url + path);
      await settled(page);
    },
    close: () => context.close(),
  };
}

/** Waits until nothing is being read for the first time. */
export async function settled(page) {
  await page.locator('#heading').first().waitFor();
  await page.waitForFunction(() => !document.querySelector('[aria-busy="true"]'), undefined, { timeout: 20_000 });
}

/** The violations of the accessibility rules on what is shown. */
export async function violations(page) {
  // Run by the debugger, so that the page's policy stays as it is.
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] });
    return violations.map((one) => `${one.id} (${one.help}): ${one.nodes.slice(0, 4).map((node) => `${node.target.join(' ')} ${node.any[0]?.message ?? ''}`).join('; ')}`);
  });
  return found;
}

export async function picture(page, name, options = {}) {
  await page.screenshot({ path: join(settings.pictures, `${name}.png`), animations: 'disabled', ...options });
}

let failed = 0;
let passed = 0;

/** One thing that must hold. The others go on when it does not. */
export async function check(name, run) {
  const began = Date.now();
  try {
    await run();
    const found = takeFaults();
    if (found.length) throw new Error(found.join('\n'));
    passed++;
    console.log(`ok   ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed++;
    takeFaults();
    console.log(`FAIL ${name} (${Date.now() - began} ms)\n     ${String(error?.stack ?? error).split('\n').slice(0, 14).join('\n     ')}`);
  }
}

export function equal(got, want, what = 'value') {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  if (a !== b) throw new Error(`${what}: got ${a}, want ${b}`);
}

export function truth(condition, what) {
  if (!condition) throw new Error(what);
}

/** Ends the run: a failed check fails it. */
export function end() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
