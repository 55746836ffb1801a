-- Asks an ingress for the replica of a request, for HAProxy (see haproxy_launcher.py, which fills in the two tables).
-- Sets txn.warmlane_host and txn.warmlane_port where the request goes direct, and always txn.warmlane_ticket: the
-- ingress's signature, or "none:" and why there is none. Such a request goes to an ingress like any other.

local INGRESSES = {}
local TIMEOUT_SECONDS = 5
local FORWARDED = { "content-type", "authorization", "x-session-id", "x-warmlane-timeout-seconds" }

local cursor = 0 -- one Lua state for each of HAProxy's threads, so nobody else writes it

local function request_of(txn, address, body)
    local head = {
        "POST " .. txn.sf:path() .. "/route HTTP/1.0",
        "Host: " .. address[1] .. ":" .. address[2],
        "Connection: close",
        "Content-Length: " .. #body,
    }
    local headers = txn.http:req_get_headers()
    for _, name in ipairs(FORWARDED) do
        if headers[name] then
            head[#head + 1] = name .. ": " .. headers[name][0]
        end
    end
    return table.concat(head, "\r\n") .. "\r\n\r\n" .. body
end

local function answer_of(address, request)
    local socket = core.tcp()
    socket:settimeout(TIMEOUT_SECONDS)
    if not socket:connect(address[1], address[2]) then
        return nil
    end
    local answer = socket:send(request) and socket:receive("*a") or nil
    socket:close()
    return answer
end

local function route(txn, backend)
    local body = txn.sf:req_body() or ""
    if tonumber(txn.sf:req_hdr("content-length")) ~= #body then
        return "none:body" -- chunked, too large for the buffer, or still on its way
    end
    local ingresses = INGRESSES[backend] or {}
    cursor = cursor + 1
    for i = 0, #ingresses - 1 do
        local address = ingresses[(cursor + i) % #ingresses + 1]
        local answer = answer_of(address, request_of(txn, address, body))
        if answer then
            if not answer:match("^HTTP/[%d%.]+ 200 ") then
                return "none:refused" -- the ingress will say why, in the form that clients know
            end
            local host, port, ticket = answer:match("\r\n\r\n(%S+) (%d+) (%S+)$")
            if not host then
                return "none:refused"
            end
            txn:set_var("txn.warmlane_host", host)
            txn:set_var("txn.warmlane_port", tonumber(port))
            return ticket
        end
    end
    return "none:unanswered"
end

core.register_action("warmlane_direct", { "http-req" }, function(txn, backend)
    txn:set_var("txn.warmlane_ticket", route(txn, backend))
end, 1)
