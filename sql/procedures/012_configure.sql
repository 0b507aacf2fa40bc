-- Queue configuration.

-- configure_queue_v1: create a queue or change its options.
--   p_queue_name  at most 255 characters; '' is a legal name
--   p_options     JSON object. Absent keys keep their value (on create: take the default), null restores the default. Two
--                 reserved keys steer the call and are no options: "__mode" ("merge", the default, or "replace": absent options
--                 go back to their defaults too) and "__strict" (true makes an unknown key an error)
--
--   option                     column                       default  bounds, unit
--   namespace                  namespace                    ''       text, at most 255 characters; "" and null count as absent
--   task                       task                         ''       text, at most 255 characters; "" and null count as absent
--   priority                   priority                     0        -1000000..1000000; stored and echoed only
--   leaseTime                  lease_time                   300      1..604800 s (7 days)
--   retryLimit                 retry_limit                  3        0..1000000 retries
--   retryDelay                 retry_delay                  1000     0..604800000 ms (7 days); stored and echoed only
--   maxSize                    max_queue_size               0        0..2147483647 messages; 0 is unlimited
--   ttl                        ttl                          3600     0..315360000 s (10 years); stored and echoed only
--   deadLetterQueue            dead_letter_queue            true     boolean
--   dlqAfterMaxRetries         dlq_after_max_retries        true     boolean
--   delayedProcessing          delayed_processing           0        0..315360000 s
--   windowBuffer               window_buffer                0        0..315360000 s
--   retentionSeconds           retention_seconds            0        0..315360000 s; 0 is off
--   completedRetentionSeconds  completed_retention_seconds  0        0..315360000 s; 0 is off
--   retentionEnabled           retention_enabled            false    boolean
--   encryptionEnabled          encryption_enabled           false    boolean
--   maxWaitTimeSeconds         max_wait_time_seconds        0        0..315360000 s; 0 is off
--   minPopWaitTime             min_pop_wait_time            0        ms; clamped to 0..60000
--   dedupWindowSeconds         dedup_window_seconds         3600     up to 2592000 s (30 days); below 0 acts as 0, which is off
--   dlqRetentionSeconds        dlq_retention_seconds        0        0..315360000 s; 0 is off
--   redeliveryDelayMs          redelivery_delay_ms          0        0..86400000 ms (a day); 0 is off
--   maxDeliveries              max_deliveries               0        0..1000000; 0 is off
--
-- Numbers are JSON numbers without a fraction or a text of digits, booleans are booleans or the text true or false; the answer has
-- numbers and booleans. namespace and task of a queue that exists already keep their values in replace mode too: they are labels
-- that a push may have derived from the name.
-- Returns {"configured":true,"queueId","partitionId":null,"queue","namespace","task","storage":"segments","options":{all values
-- in force},"ignored":[unknown keys],"notApplied":[given options that have no effect]}, or {"error","code":"invalid_option"},
-- which names the option, its bounds and what was given; then nothing was written.
-- Locks: the queues row FOR NO KEY UPDATE, so that a bounded queue's pushes see either the old or the new limit.
-- Called by: pg.Configure.
CREATE OR REPLACE FUNCTION queen.configure_queue_v1(
    p_queue_name TEXT, p_options JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_options JSONB := COALESCE(p_options, '{}'::jsonb);
    v_replace BOOLEAN;
    v_strict  BOOLEAN;
    v_created BOOLEAN;
    v_row     queen.queues%ROWTYPE;
    v_stored  JSONB;
    v_values  JSONB := '{}'::jsonb;
    v_value   JSONB;
    v_number  NUMERIC;
    v_ignored JSONB;
    v_inert   JSONB := '[]'::jsonb;
    r         RECORD;
    c_known CONSTANT TEXT[] := ARRAY[
        'namespace', 'task', 'priority', 'leaseTime', 'retryLimit', 'retryDelay', 'maxSize', 'ttl', 'deadLetterQueue',
        'dlqAfterMaxRetries', 'delayedProcessing', 'windowBuffer', 'retentionSeconds', 'completedRetentionSeconds',
        'retentionEnabled', 'encryptionEnabled', 'maxWaitTimeSeconds', 'minPopWaitTime', 'dedupWindowSeconds',
        'dlqRetentionSeconds', 'redeliveryDelayMs', 'maxDeliveries'];
BEGIN
    IF p_queue_name IS NULL THEN
        RETURN jsonb_build_object('error', 'queue is required', 'code', 'invalid_option');
    END IF;
    IF char_length(p_queue_name) > 255 THEN
        RETURN jsonb_build_object('error', format('queue name must be at most 255 characters, got %s', char_length(p_queue_name)),
                                  'code', 'invalid_option');
    END IF;
    IF jsonb_typeof(v_options) <> 'object' THEN
        RETURN jsonb_build_object('error', 'options must be a JSON object', 'code', 'invalid_option');
    END IF;
    v_value := COALESCE(NULLIF(v_options -> '__mode', 'null'), '"merge"');
    IF v_value NOT IN ('"merge"', '"replace"') THEN
        RETURN jsonb_build_object('error', format('mode must be "merge" or "replace", got %s', v_value), 'code', 'invalid_option');
    END IF;
    v_replace := v_value = '"replace"';
    v_value := COALESCE(NULLIF(v_options -> '__strict', 'null'), 'false');
    IF jsonb_typeof(v_value) <> 'boolean' THEN
        RETURN jsonb_build_object('error', format('strict must be true or false, got %s', v_value), 'code', 'invalid_option');
    END IF;
    v_strict := v_value::boolean;
    v_options := v_options - '__mode' - '__strict';
    SELECT COALESCE(jsonb_agg(k ORDER BY k), '[]') INTO v_ignored
      FROM jsonb_object_keys(v_options) AS k
     WHERE k <> ALL (c_known);
    IF v_strict AND v_ignored <> '[]' THEN
        RETURN jsonb_build_object('error', format('unknown option %s; leave it out or send "strict": false. Known options: %s',
            v_ignored -> 0, array_to_string(c_known, ', ')), 'code', 'invalid_option');
    END IF;

    FOR r IN
        SELECT o.name, o.kind, o.lowest, o.highest, o.unit
          FROM (VALUES ('namespace', 'text', 0, 255, ''), ('task', 'text', 0, 255, ''),
                       ('priority', 'int', -1000000, 1000000, ''), ('leaseTime', 'int', 1, 604800, ' seconds'),
                       ('retryLimit', 'int', 0, 1000000, ' retries'), ('retryDelay', 'int', 0, 604800000, ' milliseconds'),
                       ('maxSize', 'int', 0, 2147483647, ' messages'), ('ttl', 'int', 0, 315360000, ' seconds'),
                       ('deadLetterQueue', 'bool', 0, 1, ''), ('dlqAfterMaxRetries', 'bool', 0, 1, ''),
                       ('delayedProcessing', 'int', 0, 315360000, ' seconds'), ('windowBuffer', 'int', 0, 315360000, ' seconds'),
                       ('retentionSeconds', 'int', 0, 315360000, ' seconds'),
                       ('completedRetentionSeconds', 'int', 0, 315360000, ' seconds'),
                       ('retentionEnabled', 'bool', 0, 1, ''), ('encryptionEnabled', 'bool', 0, 1, ''),
                       ('maxWaitTimeSeconds', 'int', 0, 315360000, ' seconds'),
                       ('minPopWaitTime', 'clamp', 0, 60000, ' milliseconds'),
                       ('dedupWindowSeconds', 'window', 0, 2592000, ' seconds'),
                       ('dlqRetentionSeconds', 'int', 0, 315360000, ' seconds'),
                       ('redeliveryDelayMs', 'int', 0, 86400000, ' milliseconds'),
                       ('maxDeliveries', 'int', 0, 1000000, ' deliveries')) AS o(name, kind, lowest, highest, unit)
         WHERE v_options ? o.name AND v_options -> o.name <> 'null'
    LOOP
        v_value := v_options -> r.name;
        -- Clients that read their options from an environment send numbers and booleans as text.
        IF r.kind <> 'text' AND jsonb_typeof(v_value) = 'string' THEN
            v_value := CASE
                WHEN r.kind = 'bool' AND lower(v_value #>> '{}') IN ('true', 'false') THEN lower(v_value #>> '{}')::jsonb
                WHEN r.kind <> 'bool' AND v_value #>> '{}' ~ '^-?\d{1,18}$' THEN to_jsonb((v_value #>> '{}')::bigint)
                ELSE v_value END;
        END IF;
        IF r.kind = 'text' THEN
            IF jsonb_typeof(v_value) <> 'string' OR char_length(v_value #>> '{}') > r.highest THEN
                RETURN jsonb_build_object('code', 'invalid_option', 'error', format(
                    'option "%s" must be a string of at most %s characters, got %s', r.name, r.highest, left(v_value::text, 80)));
            END IF;
            CONTINUE WHEN v_value = '""';
        ELSIF r.kind = 'bool' THEN
            IF jsonb_typeof(v_value) <> 'boolean' THEN
                RETURN jsonb_build_object('code', 'invalid_option', 'error', format(
                    'option "%s" must be true or false, got %s', r.name, left(v_value::text, 80)));
            END IF;
        ELSE
            v_number := CASE WHEN jsonb_typeof(v_value) = 'number' THEN (v_value #>> '{}')::numeric END;
            IF v_number IS NULL OR v_number <> trunc(v_number) THEN
                RETURN jsonb_build_object('code', 'invalid_option', 'error', format(
                    'option "%s" must be an integer from %s to %s%s, got %s',
                    r.name, r.lowest, r.highest, r.unit, left(v_value::text, 80)));
            END IF;
            IF r.kind IN ('clamp', 'window') THEN
                v_number := GREATEST(v_number, r.lowest);
            END IF;
            IF r.kind = 'clamp' THEN
                v_number := LEAST(v_number, r.highest);
            END IF;
            IF v_number NOT BETWEEN r.lowest AND r.highest THEN
                RETURN jsonb_build_object('code', 'invalid_option', 'error', format(
                    'option "%s" must be an integer from %s to %s%s, got %s',
                    r.name, r.lowest, r.highest, r.unit, left(v_value::text, 80)));
            END IF;
            v_value := to_jsonb(v_number::int);
        END IF;
        v_values := v_values || jsonb_build_object(r.name, v_value);
        IF r.name IN ('priority', 'retryDelay', 'ttl') THEN
            v_inert := v_inert || to_jsonb(r.name);
        END IF;
    END LOOP;

    -- A queue that is deleted between the two statements is created by the next round.
    LOOP
        INSERT INTO queen.queues (tenant_id, name, namespace, task)
        VALUES (p_tenant, p_queue_name, '', '')
            ON CONFLICT (tenant_id, name) DO NOTHING;
        v_created := FOUND;
        SELECT * INTO v_row
          FROM queen.queues q
         WHERE q.tenant_id = p_tenant AND q.name = p_queue_name
           FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
    END LOOP;

    -- Least to most specific: the defaults, what is stored unless this call starts afresh, what was given.
    v_stored := CASE
        WHEN v_created THEN '{}'::jsonb
        WHEN v_replace THEN jsonb_build_object('namespace', v_row.namespace, 'task', v_row.task)
        ELSE jsonb_build_object(
            'namespace', v_row.namespace, 'task', v_row.task, 'priority', v_row.priority, 'leaseTime', v_row.lease_time,
            'retryLimit', v_row.retry_limit, 'retryDelay', v_row.retry_delay, 'maxSize', v_row.max_queue_size, 'ttl', v_row.ttl,
            'deadLetterQueue', v_row.dead_letter_queue, 'dlqAfterMaxRetries', v_row.dlq_after_max_retries,
            'delayedProcessing', v_row.delayed_processing, 'windowBuffer', v_row.window_buffer,
            'retentionSeconds', v_row.retention_seconds, 'completedRetentionSeconds', v_row.completed_retention_seconds,
            'retentionEnabled', v_row.retention_enabled, 'encryptionEnabled', v_row.encryption_enabled,
            'maxWaitTimeSeconds', v_row.max_wait_time_seconds, 'minPopWaitTime', v_row.min_pop_wait_time,
            'dedupWindowSeconds', v_row.dedup_window_seconds, 'dlqRetentionSeconds', v_row.dlq_retention_seconds,
            'redeliveryDelayMs', v_row.redelivery_delay_ms, 'maxDeliveries', v_row.max_deliveries) END;
    v_stored := jsonb_strip_nulls(v_stored)
        - ARRAY(SELECT e.key FROM jsonb_each(v_options) AS e(key, val) WHERE e.val = 'null' AND e.key NOT IN ('namespace', 'task'));
    v_values := jsonb_build_object(
            'namespace', '', 'task', '', 'priority', 0, 'leaseTime', 300, 'retryLimit', 3, 'retryDelay', 1000, 'maxSize', 0,
            'ttl', 3600, 'deadLetterQueue', TRUE, 'dlqAfterMaxRetries', TRUE, 'delayedProcessing', 0, 'windowBuffer', 0,
            'retentionSeconds', 0, 'completedRetentionSeconds', 0, 'retentionEnabled', FALSE, 'encryptionEnabled', FALSE,
            'maxWaitTimeSeconds', 0, 'minPopWaitTime', 0, 'dedupWindowSeconds', 3600, 'dlqRetentionSeconds', 0,
            'redeliveryDelayMs', 0, 'maxDeliveries', 0)
        || v_stored || v_values;

    UPDATE queen.queues q
       SET namespace = v_values ->> 'namespace', task = v_values ->> 'task', priority = (v_values ->> 'priority')::int,
           lease_time = (v_values ->> 'leaseTime')::int, retry_limit = (v_values ->> 'retryLimit')::int,
           retry_delay = (v_values ->> 'retryDelay')::int, max_queue_size = (v_values ->> 'maxSize')::int,
           ttl = (v_values ->> 'ttl')::int, dead_letter_queue = (v_values ->> 'deadLetterQueue')::boolean,
           dlq_after_max_retries = (v_values ->> 'dlqAfterMaxRetries')::boolean,
           delayed_processing = (v_values ->> 'delayedProcessing')::int, window_buffer = (v_values ->> 'windowBuffer')::int,
           retention_seconds = (v_values ->> 'retentionSeconds')::int,
           completed_retention_seconds = (v_values ->> 'completedRetentionSeconds')::int,
           retention_enabled = (v_values ->> 'retentionEnabled')::boolean,
           encryption_enabled = (v_values ->> 'encryptionEnabled')::boolean,
           max_wait_time_seconds = (v_values ->> 'maxWaitTimeSeconds')::int,
           min_pop_wait_time = (v_values ->> 'minPopWaitTime')::int,
           dedup_window_seconds = (v_values ->> 'dedupWindowSeconds')::int,
           dlq_retention_seconds = (v_values ->> 'dlqRetentionSeconds')::int,
           redelivery_delay_ms = (v_values ->> 'redeliveryDelayMs')::int,
           max_deliveries = (v_values ->> 'maxDeliveries')::int
     WHERE q.id = v_row.id;
    RETURN jsonb_build_object(
        'configured', TRUE, 'queueId', v_row.id, 'partitionId', NULL, 'queue', p_queue_name,
        'namespace', v_values -> 'namespace', 'task', v_values -> 'task', 'storage', 'segments',
        'options', v_values - 'namespace' - 'task', 'ignored', v_ignored, 'notApplied', v_inert);
END $$;

GRANT EXECUTE ON FUNCTION queen.configure_queue_v1(TEXT, JSONB, UUID) TO PUBLIC;
