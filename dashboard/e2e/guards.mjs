// The checks can fail: what no page may do is done here on purpose, and must be refused, or be noticed.
import { check, equal, open, settings, takeFaults, truth, violations } from './console.mjs';

export async function guards(browser) {
  const console_ = await open(browser);
  const { page } = console_;
  /** The faults that an act on the page makes, once there are any. */
  const after = async (act) => {
    await page.evaluate(act);
    await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 50)));
    return takeFaults();
  };
  await check('the policy refuses scripts, styles and requests that are not the console’s own', async () => {
    const response = await page.goto(settings.url + '/queues');
    const policy = Object.fromEntries(response.headers()['content-security-policy'].split('; ').map((part) => [part.split(' ')[0], part.split(' ').slice(1).join(' ')]));
    equal([policy['default-src'], policy['script-src'], policy['style-src'], policy['connect-src'], policy['frame-ancestors'], policy['require-trusted-types-for']], ["'none'", "'self'", "'self'", "'self'", "'none'", "'script'"]);
    await page.locator('#heading').waitFor();
    takeFaults();
    const refused = (faults, what) => truth(faults.some((fault) => fault.includes('CSP: ') && fault.includes(what)), `${what} was not refused: ${faults.join('; ')}`);
    refused(await after(() => {
      const script = document.createElement('script');
      script.append('globalThis.ran = 1');
      document.body.append(script);
    }), 'require-trusted-types-for');
    refused(await after(() => {
      try {
        document.body.insertAdjacentHTML('beforeend', '<b onclick="globalThis.ran = 1">x</b>');
      } catch {
        // refused
      }
    }), 'require-trusted-types-for');
    refused(await after(() => {
      const style = document.createElement('style');
      style.append('body { display: none }');
      document.head.append(style);
    }), 'style-src');
    refused(await after(() => void fetch('http://127.0.0.1:9/').catch(() => undefined)), 'connect-src');
    refused(await after(() => {
      const image = new Image();
      image.src = 'http://127.0.0.1:9/x.png';
    }), 'img-src');
    refused(await after(() => {
      const link = document.createElement('a');
      try {
        link.setAttribute('onclick', 'globalThis.ran = 1');
      } catch {
        // refused
      }
      document.body.append(link);
      link.click();
    }), 'require-trusted-types-for');
    equal(await page.evaluate(() => globalThis.ran ?? null), null, 'code that ran');
  });
  await check('a dialog, an error and a violation of accessibility would be noticed', async () => {
    await console_.go('/queues');
    truth((await after(() => alert('x'))).some((fault) => fault.includes('a dialog')), 'a dialog is not noticed');
    truth((await after(() => void setTimeout(() => { throw new Error('x'); }))).some((fault) => fault.includes('an error in the page')), 'an error is not noticed');
    truth((await after(() => console.error('x'))).some((fault) => fault.includes('printed')), 'what is printed is not noticed');
    equal(await violations(page), [], 'violations');
    await page.evaluate(() => {
      const button = document.createElement('button');
      document.querySelector('main').append(button);
    });
    truth((await violations(page)).some((one) => one.startsWith('button-name')), 'a button without a name is not noticed');
  });
  await console_.close();
}
