// Every change that the console can make. A test pastes the command of each into a shell, and fails for one that it does not know.
export const writes = [
  'create-queue', 'set-options', 'purge-consumed', 'purge-all', 'delete-queue',
  'push', 'push-copy', 'push-edited',
  'redrive-one', 'purge-one', 'redrive-many', 'purge-many', 'cancel-task',
  'seek-group', 'seek-partition', 'clone-group', 'end-lease', 'delete-group', 'delete-group-everywhere',
  'push-maintenance-on', 'push-maintenance-off', 'pop-maintenance-on', 'pop-maintenance-off',
] as const;

export type WriteName = (typeof writes)[number];
