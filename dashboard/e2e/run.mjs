// What a person does with the console, in a browser, against brokers that a Go test (test/dashboard) has started and filled. The argument
// says which part: the two use different brokers, and run at the same time.
import { attacks } from './attacks.mjs';
import { attention } from './attention.mjs';
import { commands } from './commands.mjs';
import { end, launch } from './console.mjs';
import { crowd } from './crowd.mjs';
import { guards } from './guards.mjs';
import { incidents } from './incidents.mjs';
import { journeys } from './journeys.mjs';
import { keys } from './keys.mjs';
import { everyPage } from './pages.mjs';
import { signIn } from './signin.mjs';

const parts = {
  shop: [everyPage, guards, attention, keys, journeys, incidents, commands],
  others: [signIn, attacks, crowd],
};
const browser = await launch();
try {
  for (const part of parts[process.argv[2]]) await part(browser);
} finally {
  await browser.close();
}
end();
