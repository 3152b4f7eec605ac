"""A model server that follows a script: the protocols of Anthropic (messages), OpenAI (chat, responses) and Gemini.

Arguments: address, port, certificate, key, script, log. Without a certificate (`-`) it speaks plain HTTP. The script is
a JSON object with `commands`, the shell commands that the model asks for one after the other, `text`, its last words, and
perhaps `tool`, the name of the tool that takes them. The log gets one JSON object a request: the path, the account, the
credentials, the number of results of tools, the newest one, and the newest message. A request without tools gets `answer`, or a short text.
"""

import http.server
import json
import ssl
import sys

ADDRESS, PORT, CERTIFICATE, KEY, SCRIPT, LOG = sys.argv[1:]
HEADERS = ("x-api-key", "authorization", "x-goog-api-key")
RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def text_of(content):
    """The text of a content, whatever its form."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or content.get("output") or "")
    return ""


def results_of(body):
    """The results of tools in a conversation, oldest first."""
    found = []
    for message in body.get("messages", []):
        if message.get("role") == "tool":
            found.append(text_of(message.get("content")))
        elif isinstance(message.get("content"), list):
            found += [text_of(part) for part in message["content"] if part.get("type") == "tool_result"]
    for content in body.get("contents", []):
        found += [text_of(part["functionResponse"]["response"]) for part in content["parts"] if "functionResponse" in part]
    items = body.get("input", [])
    if isinstance(items, list):
        found += [text_of(item) for item in items if item.get("type") in RESULTS]
    return found


def tools_of(body):
    """Every tool with the name of its group."""
    for tool in body.get("tools") or []:
        group = tool.get("tools")
        for each in tool.get("functionDeclarations") or []:
            yield each, None
        if isinstance(group, list):
            yield from ((each, tool["name"]) for each in group)
        else:
            yield tool.get("function", tool), None


def shell_tool(body):
    """The name of the tool that runs a shell command, its group, and the arguments of a call."""
    wanted = json.load(open(SCRIPT)).get("tool")
    for tool, group in tools_of(body):
        if wanted and not (tool.get("name", "") == wanted or tool.get("name", "").endswith("__" + wanted)):
            continue
        schema = tool.get("input_schema") or tool.get("parameters") or tool.get("parametersJsonSchema") or {}
        names = schema.get("properties", {})
        for parameter in ("command", "cmd"):
            if parameter in names:
                def call(command, parameter=parameter, names=names):
                    is_list = names[parameter].get("type") == "array"
                    arguments = {parameter: ["sh", "-c", command] if is_list else command}
                    if "description" in names:
                        arguments["description"] = "Run a command"
                    if "is_background" in names:
                        arguments["is_background"] = False
                    return arguments
                return tool["name"], group, call
    return None, None, None


def turn(body):
    """What the model says: a text, or the call of a tool."""
    script = json.load(open(SCRIPT))
    name, group, call = shell_tool(body)
    if name is None:
        return {"text": script.get("answer", "a title")}
    count = len(results_of(body)) % (len(script["commands"]) + 1)
    if count < len(script["commands"]):
        arguments = call(script["commands"][count])
        return {"text": "I run a command.", "name": name, "group": group, "arguments": arguments, "id": "call_%d" % count}
    return {"text": script["text"]}


def anthropic(body, said):
    """One message as events."""
    usage = {"input_tokens": 10, "output_tokens": 10}
    content = [{"type": "text", "text": said["text"]}]
    if "name" in said:
        content.append({"type": "tool_use", "id": said["id"], "name": said["name"], "input": said["arguments"]})
    reason = "tool_use" if "name" in said else "end_turn"
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model"), "content": content,
             "stop_reason": reason, "stop_sequence": None, "usage": usage}
    events = [{"type": "message_start", "message": dict(whole, content=[], stop_reason=None)}]
    for index, part in enumerate(content):
        if part["type"] == "text":
            start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": part["text"]}
        else:
            start = dict(part, input={})
            delta = {"type": "input_json_delta", "partial_json": json.dumps(part["input"])}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
    events.append({"type": "message_stop"})
    return whole, ["event: %s\ndata: %s\n\n" % (event["type"], json.dumps(event)) for event in events]


def chat(body, said):
    """One completion, whole and as chunks."""
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    message = {"role": "assistant", "content": said["text"]}
    if "name" in said:
        call = {"name": said["name"], "arguments": json.dumps(said["arguments"])}
        message["tool_calls"] = [{"index": 0, "id": said["id"], "type": "function", "function": call}]
    reason = "tool_calls" if "name" in said else "stop"
    base = {"id": "chatcmpl-1", "created": 1, "model": body.get("model")}
    whole = dict(base, object="chat.completion", usage=usage,
                 choices=[{"index": 0, "message": message, "finish_reason": reason}])
    chunks = [dict(base, object="chat.completion.chunk", choices=[{"index": 0, "delta": delta, "finish_reason": end}])
              for delta, end in ((message, None), ({}, reason))]
    chunks[-1]["usage"] = usage
    return whole, ["data: %s\n\n" % json.dumps(chunk) for chunk in chunks] + ["data: [DONE]\n\n"]


def responses(body, said):
    """One response, whole and as events."""
    usage = {"input_tokens": 10, "output_tokens": 10, "total_tokens": 20,
             "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    part = {"type": "output_text", "text": said["text"], "annotations": []}
    output = [{"type": "message", "id": "item_0", "role": "assistant", "status": "completed", "content": [part]}]
    if "name" in said:
        output.append({"type": "function_call", "id": "item_1", "call_id": said["id"], "name": said["name"],
                       "arguments": json.dumps(said["arguments"]), "status": "completed"})
        if said["group"]:
            output[-1]["namespace"] = said["group"]
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": body.get("model"), "status": "completed",
             "output": output, "usage": usage, "error": None, "parallel_tool_calls": False, "tools": [], "tool_choice": "auto"}
    events = [{"type": "response.created", "response": dict(whole, status="in_progress", output=[], usage=None)}]
    for index, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return whole, ["event: %s\ndata: %s\n\n" % (event["type"], json.dumps(event)) for event in events]


def gemini(body, said):
    """One message, whole and as one event."""
    parts = [{"text": said["text"]}]
    if "name" in said:
        parts.append({"functionCall": {"name": said["name"], "args": said["arguments"]}})
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    whole = {"candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": parts}}],
             "usageMetadata": usage, "modelVersion": "scripted"}
    return whole, ["data: %s\r\n\r\n" % json.dumps(whole)]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, kind, chunks):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in [chunk.encode() for chunk in chunks] + [b""]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

    def do_GET(self):
        self.note({})
        self.answer(200, "application/json", ['{"object": "list", "data": [], "models": []}'])

    def note(self, body):
        results = results_of(body)
        line = {"path": self.path, "results": len(results), "result": results[-1] if results else None,
                "message": text_of((body.get("messages") or [{}])[-1].get("content")),
                "account": self.headers["chatgpt-account-id"], "credentials": [self.headers[name] for name in HEADERS if self.headers[name]]}
        with open(LOG, "a") as log:
            log.write(json.dumps(line) + "\n")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        self.note(body)
        path = self.path.split("?")[0]
        if path.endswith(":countTokens"):
            return self.answer(200, "application/json", ['{"totalTokens": 10}'])
        if path.endswith("/count_tokens"):
            return self.answer(200, "application/json", ['{"input_tokens": 10}'])
        protocol = {"messages": anthropic, "completions": chat, "responses": responses, "generateContent": gemini,
                    "streamGenerateContent": gemini}.get(path.replace(":", "/").rsplit("/", 1)[-1])
        if protocol is None:
            return self.answer(404, "application/json", ['{"error": {"message": "not here"}}'])
        whole, events = protocol(body, turn(body))
        if body.get("stream") or path.endswith(":streamGenerateContent"):
            return self.answer(200, "text/event-stream", events)
        return self.answer(200, "application/json", [json.dumps(whole)])


server = http.server.ThreadingHTTPServer((ADDRESS, int(PORT)), Handler)
if CERTIFICATE != "-":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
