// What a person does with the console, in a browser, against brokers that a Go test (test/dashboard) has started and filled.
import { attacks } from './attacks.mjs';
import { end, launch } from './console.mjs';
import { crowd } from './crowd.mjs';
import { journeys } from './journeys.mjs';
import { everyPage } from './pages.mjs';
import { signIn } from './signin.mjs';

const browser = await launch();
try {
  await everyPage(browser);
  await attacks(browser);
  await journeys(browser);
  await crowd(browser);
  await signIn(browser);
} finally {
  await browser.close();
}
end();
