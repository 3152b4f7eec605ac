//! The handler of the protocol's requests.

use super::calls::Call;
use super::reply::Reply;
use super::running::{Calls, Running};
use super::sandboxes::Sandboxes;
use super::tools;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use std::sync::Arc;

pub(super) struct Server {
    sandboxes: Arc<Sandboxes>,
    calls: Arc<Calls>,
}

impl Server {
    pub(super) fn new(sandboxes: Arc<Sandboxes>, calls: Arc<Calls>) -> Server {
        Server { sandboxes, calls }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("brig", env!("CARGO_PKG_VERSION"));
        info.instructions = Some(self.sandboxes.instructions());
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::find(&request.name) else {
            return Err(ErrorData::invalid_params(format!("unknown tool `{}`", request.name.escape_debug()), None));
        };
        let running = match Running::begin(&self.calls, tool.max_calls()) {
            Ok(running) => running,
            Err(error) => return Ok(Reply::from(error).into()),
        };
        let cancel = Arc::clone(&running.cancel);
        let sandboxes = Arc::clone(&self.sandboxes);
        let arguments = request.arguments.unwrap_or_default();
        let mut work = tokio::task::spawn_blocking(move || {
            let call = Call { sandboxes: &sandboxes, cancel: &running.cancel };
            tools::call(tool, &call, arguments).unwrap_or_else(Reply::from)
        });
        let done = tokio::select! {
            done = &mut work => done,
            () = context.ct.cancelled() => {
                cancel.set();
                work.await
            }
        };
        match done {
            Ok(reply) => Ok(reply.into()),
            Err(cause) => Err(ErrorData::internal_error(cause.to_string(), None)),
        }
    }
}
