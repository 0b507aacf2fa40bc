// The command that every change shows does the same when it is pasted into a shell.
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { check, equal, open, settings, truth } from './console.mjs';
import { api, until } from './journeys.mjs';

const queue = '-it\'s "one" of $(us) \\ ü';
const group = "-a group's $HOME";

/** Runs a command as somebody would who pastes it, without any context of queenctl. */
function paste(command) {
  return new Promise((resolve, reject) => {
    const env = { PATH: `${settings.programs}:${process.env.PATH}`, HOME: settings.pictures, LC_ALL: 'C' };
    execFile('/bin/bash', ['--norc', '-c', command], { env, timeout: 30_000 }, (error, stdout, stderr) => (error ? reject(new Error(`${command}\n${stdout}${stderr}`)) : resolve(stdout)));
  });
}

/** The changes whose commands were pasted, and all that there are. */
const pasted = new Set();
const writes = [...readFileSync(new URL('../src/lib/writes.ts', import.meta.url), 'utf8').matchAll(/'([a-z-]+)'/g)].map((found) => found[1]);

export async function commands(browser) {
  const console_ = await open(browser);
  const { page } = console_;
  const dialog = page.getByRole('dialog');
  const name = encodeURIComponent(queue);
  const address = `/api/v1/resources/queues/${name}`;
  const at = { queue: `/queue?name=${name}`, group: `/group?name=${encodeURIComponent(group)}&queue=${name}` };
  /** Takes the command of an open dialog, once it is ready to be given, closes the dialog without having done anything, and pastes it. */
  const pasteShown = async (verb) => {
    await dialog.last().getByRole('button', { name: verb }).last().waitFor();
    const text = await dialog.last().locator('.commands pre').first().textContent();
    const name = await dialog.last().locator('form').getAttribute('data-write');
    truth(text.startsWith('queenctl '), text);
    truth(text.includes(settings.url), `${text} does not name the broker`);
    while ((await dialog.count()) > 0) await page.keyboard.press('Escape');
    await paste(text);
    pasted.add(name);
  };
  /** Goes to a page and looks past the answers that the pages before had. */
  const go = async (path) => {
    await console_.go(path);
    await page.getByRole('button', { name: 'Refresh', exact: true }).click();
  };
  const depth = async () => (await api('GET', `${address}/depth?group=${encodeURIComponent(group)}`)).depth;
  const options = async () => (await api('GET', `${address}/options`)).options;
  const pop = async (batch, more = '') => (await api('GET', `/api/v1/pop/queue/${name}?consumerGroup=${encodeURIComponent(group)}&batch=${batch}${more}`)).messages;
  const buried = async () => (await api('GET', `/api/v1/dlq/count?queue=${name}`)).count;
  /** Makes dead letters of so many messages; of a batch the broker takes one for each partition at a time. */
  const bury = (most, error) => until('the dead letters', async () => {
    const messages = await pop(9, '&partitions=4');
    await api('POST', '/api/v1/ack/batch', { consumerGroup: group, acknowledgments: messages.map((m) => ({ transactionId: m.transactionId, partitionId: m.partitionId, leaseId: m.leaseId, status: 'dlq', error })) });
    return (await buried()) >= most;
  });

  await check('pasted: a queue is created', async () => {
    await console_.go('/queues?create=1');
    await dialog.getByLabel('Name').fill(queue);
    await dialog.getByLabel('Retries').fill('0');
    await pasteShown('Create');
    equal((await options()).retryLimit, 0);
  });
  await check('pasted: options are changed', async () => {
    await go(`${at.queue}&tab=config`);
    await page.getByRole('spinbutton', { name: 'leaseTime' }).fill('45');
    await page.getByRole('checkbox', { name: 'retentionEnabled' }).check();
    await page.getByRole('button', { name: 'Review 2 changes' }).click();
    await pasteShown('Save');
    const { leaseTime, retentionEnabled, retryLimit } = await options();
    equal([leaseTime, retentionEnabled, retryLimit], [45, true, 0]);
  });
  await check('pasted: a message is pushed byte for byte', async () => {
    const payload = '{ "it\'s": "$(echo no) `no` \\\\", "n": 1.10, "big": 12345678901234567890 }';
    await console_.go(`/messages?push=1&queue=${name}`);
    await dialog.getByLabel('Partition').fill("lane's");
    await dialog.getByLabel('Transaction id').fill('-by hand');
    await dialog.getByLabel('Payload').fill(payload);
    await pasteShown('Push');
    const raw = await (await fetch(`${settings.url}/api/v1/messages?queue=${name}&partition=${encodeURIComponent("lane's")}`)).text();
    truth(raw.includes(payload) && raw.includes('"-by hand"'), raw);
  });
  await check('pasted: a message is shown', async () => {
    await console_.context.grantPermissions(['clipboard-read', 'clipboard-write']);
    await go(`/messages?queue=${name}`);
    await page.getByRole('button', { name: '-by hand' }).click();
    await dialog.getByRole('button', { name: 'queenctl', exact: true }).click();
    const command = await until('the copy', () => page.evaluate(() => navigator.clipboard.readText()));
    truth((await paste(command)).includes('12345678901234567890'), 'the message is not shown');
  });
  await check('pasted: a copy of a message is pushed', async () => {
    await go(`/messages?queue=${name}`);
    await page.getByRole('button', { name: '-by hand' }).click();
    await dialog.getByRole('button', { name: 'Push a copy' }).click();
    await page.getByRole('dialog', { name: 'Push a copy' }).getByLabel('Partition').fill('copies');
    await pasteShown('Push');
    const raw = await (await fetch(`${settings.url}/api/v1/messages?queue=${name}&partition=copies`)).text();
    truth(raw.includes('"big": 12345678901234567890'), raw);
    await api('POST', `${address}/purge`, { mode: 'all' });
    await api('POST', '/api/v1/push', { items: [{ queue, partition: 'only', transactionId: 'only', payload: 0 }] });
  });
  await api('POST', '/api/v1/push', { items: Array.from({ length: 11 }, (_, n) => ({ queue, partition: `p${n % 2}`, transactionId: `m${n}`, payload: n })) });
  await check('pasted: a group is moved to the end, to a time, to an offset and to the beginning', async () => {
    await api('POST', '/api/v1/ack', await (async () => {
      const [one] = await pop(1, '&partitions=1');
      return { transactionId: one.transactionId, partitionId: one.partitionId, leaseId: one.leaseId, status: 'completed', consumerGroup: group };
    })());
    const all = 12;
    for (const [choice, want] of [['To the end', 0], ['To a time', all], ['To the end', 0], ['To an offset', all], ['To the end', 0], ['To the oldest message', all]]) {
      await go(at.group);
      await page.getByRole('button', { name: 'Seek…', exact: true }).click();
      await dialog.getByText(choice).click();
      await dialog.getByText('Counting…').waitFor({ state: 'hidden' });
      await pasteShown('Move the group');
      equal(await depth(), want, choice);
    }
    await go(at.group);
    await page.getByRole('button', { name: 'Seek… in p0' }).click();
    await dialog.getByText('To the end').click();
    await dialog.getByText('Counting…').waitFor({ state: 'hidden' });
    await pasteShown('Move the group');
    equal(await depth(), all - 6, 'without p0');
  });
  await check('pasted: a group is cloned', async () => {
    await go(at.group);
    await page.getByRole('button', { name: 'Clone…' }).click();
    await dialog.getByLabel('Name of the other group').fill("-twin's $HOME");
    await dialog.getByText('Counting…').waitFor({ state: 'hidden' });
    await pasteShown('Put it there');
    equal((await api('GET', `${address}/depth?group=${encodeURIComponent("-twin's $HOME")}`)).depth, await depth(), 'what the clone has before it');
    await api('DELETE', `/api/v1/consumer-groups/${encodeURIComponent("-twin's $HOME")}`);
  });
  await check('pasted: a lease is ended', async () => {
    const [first] = await pop(1);
    truth(first, 'nothing to pop');
    await go(at.group);
    await page.getByRole('button', { name: /^End lease…/ }).first().click();
    await pasteShown('End the lease');
    equal((await api('GET', `/api/v1/leases?queue=${name}`)).total, 0, 'leases');
  });
  await check('pasted: dead letters are brought back and deleted, one and many', async () => {
    await bury(4, "it's $(broken)");
    const all = await buried();
    const open_ = async (button) => {
      await go(`/dead-letters?queue=${name}`);
      const { messages } = await api('GET', `/api/v1/dlq?queue=${name}&limit=1`);
      await page.getByRole('button', { name: messages[0].transactionId, exact: true }).click();
      await page.getByRole('button', { name: button }).click();
    };
    await open_('Bring it back…');
    await pasteShown('Bring it back');
    equal(await buried(), all - 1, 'after one was brought back');
    await open_('Delete…');
    await pasteShown('Delete');
    equal(await buried(), all - 2, 'after one was deleted');
    await open_('Edit and push…');
    await dialog.getByLabel('Partition').fill('edited');
    await dialog.getByLabel('Payload').fill('{"edited": 1.0}');
    await pasteShown('Push');
    truth((await (await fetch(`${settings.url}/api/v1/messages?queue=${name}&partition=edited`)).text()).includes('{"edited": 1.0}'), 'the edited message was not pushed');
    await go(`/dead-letters?queue=${name}&error=${encodeURIComponent("it's $(broken)")}`);
    await page.getByRole('button', { name: /^Redrive all \d/ }).click();
    await dialog.getByLabel('At most so many a second').fill('500');
    await dialog.getByRole('button', { name: /^Move \d/ }).waitFor();
    await pasteShown(/^Move/);
    equal(await buried(), 0, 'after the rest was brought back');
    await bury(1, '-dash');
    await go(`/dead-letters?queue=${name}&error=-dash`);
    await page.getByRole('button', { name: /^Delete all \d/ }).click();
    await pasteShown(/^Delete \d/);
    equal(await buried(), 0, 'after the purge');
  });
  await check('pasted: a task is cancelled', async () => {
    await api('POST', '/api/v1/push', { items: [1, 2, 3].map((n) => ({ queue, partition: 'slow', transactionId: `slow-${n}`, payload: n })) });
    await bury(2, 'slow');
    const task = await api('POST', '/api/v1/dlq/tasks', { kind: 'redrive', filter: { queue, error: 'slow' }, rate: 1 });
    await go('/tasks');
    await page.getByRole('button', { name: 'Cancel' }).first().click();
    await pasteShown('Cancel it');
    await until('the end of the task', async () => (await api('GET', `/api/v1/dlq/tasks/${task.id}`)).state === 'cancelled');
  });
  await check('pasted: switches are turned on and off', async () => {
    for (const [row, off, on, member] of [['Pops', 'Switch off…', 'Switch on…', 'popMaintenanceMode'], ['Pushes', 'Put into maintenance…', 'Switch on…', 'maintenanceMode']]) {
      for (const [button, want] of [[off, true], [on, false]]) {
        await go('/system');
        await page.locator('.spread', { hasText: row }).getByRole('button', { name: button }).click();
        await pasteShown(want ? 'Do it' : 'Switch on');
        await until(`${row} ${want}`, async () => (await api('GET', '/api/v1/system/maintenance'))[member] === want);
      }
    }
  });
  await check('pasted: what was consumed is deleted', async () => {
    await api('POST', '/api/v1/push', { items: [1, 2, 3].map((n) => ({ queue, partition: 'consumed', transactionId: `consumed-${n}`, payload: n })) });
    const stored = async () => (await api('GET', `/api/v1/messages?queue=${name}&limit=1000`)).messages.filter((one) => one.payloadAvailable).length;
    // The group passes everything: nothing is unread.
    await api('POST', `/api/v1/consumer-groups/${encodeURIComponent(group)}/queues/${name}/seek`, { toEnd: true });
    truth((await stored()) > 0, 'nothing is stored');
    await go(`${at.queue}&tab=danger`);
    await page.getByRole('button', { name: 'Purge consumed…' }).click();
    await dialog.getByText('Counting…').waitFor({ state: 'hidden' });
    await pasteShown(/^Delete \d+ messages/);
    equal(await stored(), 0, 'stored messages');
  });
  await check('pasted: a group is deleted in one queue and in all, a queue purged and deleted', async () => {
    const groups = async (of) => (await api('GET', `/api/v1/resources/consumer-groups?group=${encodeURIComponent(of)}`)).total;
    await go(at.group);
    await page.getByRole('button', { name: 'Delete…' }).click();
    await pasteShown('Delete');
    equal(await groups(group), 0, 'groups');
    await api('POST', '/api/v1/push', { items: [1, 2].map((n) => ({ queue, partition: 'end', transactionId: `end-${n}`, payload: n })) });
    await api('GET', `/api/v1/pop/queue/${name}?consumerGroup=everywhere&batch=1&autoAck=true`);
    equal(await groups('everywhere'), 1, 'groups');
    await go('/group?name=everywhere');
    await page.getByRole('button', { name: 'Delete…' }).click();
    await pasteShown('Delete');
    equal(await groups('everywhere'), 0, 'groups');
    for (const [button, verb] of [['Purge all…', /^Delete \d+ messages/], ['Delete the queue…', 'Delete the queue']]) {
      await go(`${at.queue}&tab=danger`);
      await page.getByRole('button', { name: button }).click();
      await dialog.getByText('Counting…').waitFor({ state: 'hidden' });
      await pasteShown(verb);
      if (button.startsWith('Purge')) equal((await api('GET', address)).totals.pending, 0, 'pending');
    }
    equal((await api('GET', `/api/v1/resources/queues?queue=${name}`)).queues, [], 'queues');
  });
  await check('the command of every change was pasted', () => {
    truth(writes.length > 15, 'the list of changes was not found');
    equal(writes.filter((one) => !pasted.has(one)), [], 'changes whose command was not pasted');
    equal([...pasted].filter((one) => !writes.includes(one)), [], 'changes that are not listed');
  });
  await console_.close();
}
