// Every finding leads to the place where it is looked into, and what is to be done can be done there.
import { check, equal, open, settled, truth } from './console.mjs';

/** [a finding, where its link leads, what stands there, what can be done there] */
const real = [
  [/A batch was delivered 7 times/, '/group', ['customer-15'], ['End lease… of customer-15', 'Seek… in customer-15']],
  [/A lease has been held for/, '/group', ['customer-20'], ['End lease… of customer-20']],
  [/A batch was abandoned/, '/group', ['customer-40', 'nobody: a lease ran out'], ['Seek… in customer-40']],
  [/is 2 h( \d+ min)? behind in shop\.orders/, '/group', [/customer-/], [/^Seek… in customer-/]],
  [/shop\.payments is nearly full/, '/queue', ['fraud'], ['Seek… fraud in shop.payments']],
  [/dead letters/, '/dead-letters', ['declined'], [/Redrive all \d/, /Delete all \d/]],
];

const made = [
  ['**/readyz', { ready: false, checks: { database: 'ok', statistics: 'stopped 3 minutes ago' } }, /Check “statistics” fails/, '/system', ['stopped 3 minutes ago']],
  ['**/api/v1/system/maintenance', { maintenanceMode: true, popMaintenanceMode: true, bufferedMessages: 12, bufferHealthy: false, bufferStats: { pendingCount: 12, failedCount: 2 } }, /Pushes are in maintenance/, '/system', ['in maintenance'], ['Switch on…']],
  ['**/api/v1/system/brokers*', { total: 1, nextCursor: null, brokers: [{ id: 'broker-b', instance: 'b', version: '1', address: 'b:6632', startedAt: '2026-01-01T00:00:00Z', lastSeen: '2026-01-01T01:00:00Z', alive: false, self: false }] }, /Broker broker-b is gone/, '/system', ['broker-b', 'b:6632']],
  ['**/api/v1/analytics/postgres-stats', {
    timestamp: '2026-01-01T00:00:00Z', database: 'queen', databaseCache: { cacheHitRatio: 99 }, deadTuples: [], activeQueries: [], tableSizes: [], vacuumRunning: [],
    oldestSnapshot: { pid: 4711, applicationName: 'report', state: 'idle in transaction', ageSeconds: 4000, xidAge: 99, query: 'SELECT forever' },
    lockWaits: [{ pid: 4712, blockedBy: [4711], waitEvent: 'transactionid', waitSeconds: 60, query: 'UPDATE nothing' }],
  }, /A transaction has been open for 1 h/, '/system', ['4711, report, idle in transaction', 'SELECT forever', 'UPDATE nothing']],
];

export async function attention(browser) {
  const console_ = await open(browser);
  const { page } = console_;
  const findings = page.locator('.findings li');
  const follow = async (title, path, there, buttons = []) => {
    const finding = findings.filter({ hasText: title }).first();
    await finding.waitFor();
    await finding.getByRole('link').click();
    await settled(page);
    equal(new URL(page.url()).pathname, path, 'where the link leads');
    for (const text of there) await page.locator('main').getByText(text).first().waitFor();
    for (const name of buttons) await page.locator('main').getByRole('button', { name }).first().waitFor();
    equal(await page.locator('main [role=alert]').count(), 0, 'faults there');
  };
  for (const [title, path, there, buttons] of real) {
    await check(`the finding ${title} leads to its fix`, async () => {
      await console_.go('/');
      await follow(title, path, there, buttons);
    });
  }
  for (const [route, answer, title, path, there, buttons] of made) {
    await check(`the finding ${title} leads to its fix`, async () => {
      await page.route(route, (request) => request.fulfill({ status: 200, contentType: 'application/json', body: JSON.stringify(answer) }));
      await console_.go('/');
      await follow(title, path, there, buttons);
      await page.unroute(route);
    });
  }
  await check('every finding has a link that leads somewhere', async () => {
    await console_.go('/');
    await findings.first().waitFor();
    const links = await findings.getByRole('link').evaluateAll((all) => all.map((one) => one.getAttribute('href')));
    equal(links.length, await findings.count(), 'links');
    for (const link of links) {
      await console_.go(link);
      truth((await page.locator('main [role=alert]').count()) === 0 && (await page.locator('#heading').textContent()) !== '', `${link} shows a fault`);
    }
  });
  await console_.close();
}
